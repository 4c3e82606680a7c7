"""The report in a real browser: every control works, and nothing is logged, loaded or clipped."""

import json
import re

import numpy as np
import pytest

import nowait as nw
from nowait.reports import write_report
from reports.browser import PROGRAM, Browser

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on the PATH")

PROBLEM = nw.problems.NoisyQuadratic(dimension=4, sigma=0.1)
SPEEDS = nw.speeds.Exponential([1.0, 1.0, 2.0, 12.0])
LONG_NAME = "Ringmaster_with_a_name_that_is_long_and_cannot_be_broken_in_two"
CHARTS = ("errors", "timeline", "heat", "delays", "shares", "sweeps", "stepsizes")
LINES = "document.querySelectorAll('#errors-chart path.line').length"
PLOT = "#errors-chart .chart > svg"


def simulate(method, seed=0):
    return nw.simulate(PROBLEM, method, SPEEDS, seconds=150, seed=seed, progress=False)


def constant(size):
    return nw.AsynchronousSGD(nw.Constant(size))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    sweep = nw.sweep(
        PROBLEM, constant, SPEEDS, stepsizes=[0.01, 0.1, 0.3, 80.0], seeds=2, gradients=200, progress=False
    )
    runs = {
        "Minibatch": simulate(nw.MinibatchSGD(nw.Constant(0.5))),
        "Async": [simulate(nw.AsynchronousSGD(nw.DelayAdaptive(0.1)), seed) for seed in range(3)],
        LONG_NAME: simulate(nw.RingmasterASGD(nw.Constant(0.1), max_delay=6)),
        "<i>diverged</i>": simulate(constant(80.0)),
        "more 1": simulate(constant(0.01)),
        "more 2": simulate(constant(0.02)),
        "A sweep": sweep,
    }
    path = tmp_path_factory.mktemp("report") / "report.html"
    return write_report(runs, path, title="A race", notes=["It ended."], predictions=[("speedup", "3", "2.9")])


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser, report):
    """Open the report in a laptop-sized window in light mode; afterwards, check that the page logged no error."""
    browser.prefer("light")
    browser.resize(1440, 900)
    browser.open(report)
    yield browser
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:", "blob:"))] == []


def text(page, selector):
    return page.ask(f"document.querySelector({json.dumps(selector)}).textContent")


def texts(page, selector):
    return page.ask(f"[...document.querySelectorAll({json.dumps(selector)})].map((element) => element.textContent)")


def pressed(page, selector):
    return page.ask(f"document.querySelector({json.dumps(selector)}).getAttribute('aria-pressed')") == "true"


def drawn_path(page, name="Minibatch"):
    return page.ask(f"document.querySelector('#errors-chart path[data-name={name}]').getAttribute('d')")


def row(place):
    return f"#errors-chart .legend .row:nth-child({place})"


def x_ticks(page, chart="errors"):
    return texts(page, f"#{chart}-chart .chart > svg > g:first-child > g:first-child text")


# What is on the page


def test_every_part_is_drawn(page):
    for chart in CHARTS:
        label = f"document.querySelector('#{chart}-chart .chart > svg').getAttribute('aria-label').length"
        assert page.ask(label) > 20
    assert texts(page, "h2") == [
        "Loss",
        "Summary",
        "What the workers did",
        "Delays over time",
        "How often each delay occurred",
        "Share of the work",
        "Final loss against stepsize",
        "Loss curves of the stepsizes",
        "Theory and measurement",
        "Where the runs were made",
        "Configuration",
    ]
    assert page.ask(LINES) == 6
    assert page.ask("document.querySelectorAll('#errors-chart path.band').length") == 1
    assert page.ask("document.querySelectorAll('i').length") == 0


def test_the_headline_and_the_main_chart_are_above_the_fold(page):
    bottom = "document.querySelector('%s').getBoundingClientRect().bottom"
    assert page.ask(bottom % ".headline") < 150
    assert page.ask(bottom % PLOT) < 900
    assert re.fullmatch(r"[\d.]+ × as fast as Minibatch", text(page, ".headline"))


def test_no_number_on_the_page_is_broken(page):
    for axis in ("gradients", "step", "time"):
        page.click(f"#errors-chart [data-value={axis}]")
        for switch in ("logX", "logY"):
            page.click(f"#errors-chart [data-tool={switch}]")
            drawn = page.ask("document.body.innerHTML.split('<script')[0].replaceAll('data-value=\"Infinity\"', '')")
            assert not re.search(r"NaN|undefined|Infinity", drawn)


# The main chart


def test_the_axis_can_be_switched(page):
    seen = {drawn_path(page)}
    for axis, title in (("gradients", "gradients"), ("step", "steps"), ("time", "time (s)")):
        page.click(f"#errors-chart [data-value={axis}]")
        assert pressed(page, f"#errors-chart [data-value={axis}]")
        assert page.ask("document.querySelectorAll('#errors-chart [data-value][aria-pressed=true]').length") == 1
        assert text(page, "#errors-chart text.title") == title
        seen.add(drawn_path(page))
    assert len(seen) == 3


@pytest.mark.parametrize("tool", ["logX", "logY"])
def test_scales_can_be_switched_there_and_back(page, tool):
    switch = f"#errors-chart [data-tool={tool}]"
    before, was = drawn_path(page), pressed(page, switch)
    page.click(switch)
    assert pressed(page, switch) is not was
    assert drawn_path(page) != before
    page.click(switch)
    assert drawn_path(page) == before


def test_dragging_zooms_and_a_double_click_or_the_button_shows_everything_again(page):
    whole = x_ticks(page)
    for reset in (lambda: page.click(PLOT, count=2), lambda: page.click("#errors-chart .reset")):
        page.drag(PLOT, 0.3, 0.5)
        zoomed = [float(tick) for tick in x_ticks(page)]
        assert 20 < zoomed[0] < zoomed[-1] < 90
        reset()
        assert x_ticks(page) == whole
        assert page.ask("document.querySelector('#errors-chart .reset').hidden")


def test_keys_zoom_and_move(page):
    whole = x_ticks(page)
    page.ask(f"document.querySelector('{PLOT}').focus()")
    page.press("+")
    zoomed = x_ticks(page)
    assert zoomed != whole
    page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", code="ArrowRight", modifiers=8)
    assert x_ticks(page) != zoomed
    page.press("Escape")
    assert x_ticks(page) == whole


def test_smoothing_draws_the_average_over_the_faint_curve(page):
    before = drawn_path(page)
    page.enter("#errors-chart input[type=range]", "0.9")
    assert text(page, "#errors-chart output") == "0.90"
    assert drawn_path(page) != before
    assert page.ask("document.querySelectorAll('#errors-chart path.raw').length") == 6
    page.enter("#errors-chart input[type=range]", "0")
    assert drawn_path(page) == before


def test_the_legend_switches_runs_off_and_on(page):
    page.click(f"{row(2)} .name")
    assert not pressed(page, f"{row(2)} .name")
    assert page.ask(LINES) == 5
    page.click(f"{row(2)} .name")
    assert page.ask(LINES) == 6


@pytest.mark.parametrize("way", ["only", "alt", "double"])
def test_one_run_can_be_shown_alone_and_all_again(page, way):
    def solo():
        if way == "only":
            page.click(f"{row(2)} .only")
        else:
            page.click(f"{row(2)} .name", modifiers=1 if way == "alt" else 0, count=2 if way == "double" else 1)

    solo()
    assert page.ask(LINES) == 1
    assert page.ask("document.querySelector('#errors-chart path.line').dataset.name") == "Async"
    solo()
    assert page.ask(LINES) == 6


def test_runs_can_be_filtered_by_name(page):
    page.enter("#errors-chart .filter", "MORE")
    assert page.ask(LINES) == 2
    assert page.ask("document.querySelectorAll('#errors-chart .row:not([hidden])').length") == 2
    page.enter("#errors-chart .filter", "nothing like it")
    assert page.ask(LINES) == 0
    page.enter("#errors-chart .filter", "")
    assert page.ask(LINES) == 6


def test_pointing_at_the_curves_tells_the_values_of_all_runs_and_covers_nothing(page):
    place = page.point_at(PLOT, across=0.6)
    assert re.match(r"after [0-9.]+ s", text(page, "#errors-chart .at"))
    assert re.fullmatch(r"0\.\d+", text(page, f"{row(1)} .value"))
    assert re.fullmatch(r"\d\S* .*to \d\S* .*", text(page, f"{row(2)} .range"))
    assert "diverged" in text(page, f"{row(4)} .value")
    under = f"document.elementFromPoint({place['x'] + 30}, {place['y'] + 20}).closest('svg')"
    assert page.ask(f"{under} === document.querySelector('{PLOT}')")
    page.point_at("h1")
    assert text(page, "#errors-chart .at") == "last values"


def test_touching_the_curves_tells_them_too(page):
    place = page.point_at(PLOT, across=0.3)
    page.point_at("h1")
    page.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[place])
    page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    page.wait_until("document.querySelector('#errors-chart .at').textContent.startsWith('after')")


def test_arrow_keys_tell_values_without_a_mouse(page):
    page.ask(f"document.querySelector('{PLOT}').focus()")
    page.press("ArrowRight")
    assert text(page, "#errors-chart .at") == "after 0 s"
    page.press("End")
    assert re.match(r"after 1\d\d", text(page, "#errors-chart .at"))
    page.press("Escape")
    assert text(page, "#errors-chart .at") == "last values"


# Downloads


@pytest.mark.parametrize("chart", CHARTS)
def test_every_chart_can_be_downloaded(page, chart):
    page.ask(
        "window.saved = []; const make = URL.createObjectURL;"
        "URL.createObjectURL = (blob) => { saved.push(blob); return make(blob) };"
        "HTMLAnchorElement.prototype.click = function () { saved.at(-1).file = this.download }"
    )
    for kind in ("CSV", "PNG", "SVG"):
        page.click(f"#{chart}-chart [aria-label='Download as {kind}']")
    page.wait_until("saved.length === 3 && saved.every((blob) => blob.file)")
    saved = page.ask("Promise.all(saved.map(async (blob) => [blob.file, await blob.text()]))")
    files = {name.rpartition(".")[2]: content for name, content in saved}
    assert set(files) == {"csv", "png", "svg"}
    lines = files["csv"].splitlines()
    assert len(lines) > 3
    assert len({len(re.findall(r'(?:[^,"]|"[^"]*")*,', line)) for line in lines}) == 1
    assert files["svg"].startswith("<svg")
    assert "var(--" not in files["svg"]
    assert "PNG" in files["png"][:8]


# Tables


def test_the_table_is_sorted_by_the_column_that_is_clicked(page):
    names = "#summary tbody th"
    loss = "#summary thead th:nth-child(6) button"
    page.click(loss)
    rising = texts(page, names)
    assert rising[-1] == "<i>diverged</i>"
    page.click(loss)
    assert texts(page, names) == rising[::-1]
    assert page.ask("document.querySelector('#summary th[aria-sort]').getAttribute('aria-sort')") == "descending"
    page.click("#summary thead th:nth-child(1) button")
    assert texts(page, names)[:2] == ["<i>diverged</i>", "Async"]


# Workers


def test_the_timeline_shows_the_whole_run_with_the_straggler_first(page):
    page.choose("#timeline-chart select", "2")
    assert texts(page, "#timeline-chart .chart text[text-anchor=end]")[0].startswith("3 · ")
    kinds = "[...document.querySelectorAll('#timeline-chart .chart path.job')].map((job) => job.dataset.kind).sort()"
    assert page.ask(kinds) == ["applied", "dropped", "open"]
    assert "dropped" in text(page, "#timeline-chart .key")
    assert float(x_ticks(page, "timeline")[-1]) == 150


def test_the_timeline_tells_of_every_job(page):
    page.choose("#timeline-chart select", "2")
    page.ask("document.querySelector('#timeline-chart .chart > svg').focus()")
    page.press("Home")
    told = text(page, "#timeline-chart .readout")
    for word in ("worker 3", "job", "outcome", "version", "delay", "step", "started", "arrived", "computed"):
        assert word in told
    page.point_at("#timeline-chart .chart > svg", across=0.5, down=0.1)
    assert "worker 3" in text(page, "#timeline-chart .readout")


def test_the_timeline_zooms_by_dragging_the_brush_and_the_button(page):
    whole = x_ticks(page, "timeline")
    page.drag("#timeline-chart .chart > svg", 0.3, 0.6)
    dragged = x_ticks(page, "timeline")
    assert dragged != whole
    page.click("#timeline-chart .reset")
    page.drag("#timeline-chart .brush svg", 0.5, 0.7)
    brushed = x_ticks(page, "timeline")
    assert brushed not in (whole, dragged)
    page.drag("#timeline-chart .brush svg", 0.6, 0.7)
    assert float(x_ticks(page, "timeline")[0]) > float(brushed[0])
    page.ask("document.querySelector('#timeline-chart .brush svg').focus()")
    page.press("Escape")
    assert x_ticks(page, "timeline") == whole


def test_many_jobs_are_drawn_in_columns_and_the_first_ones_one_by_one(page, tmp_path):
    run = nw.simulate(PROBLEM, constant(0.01), SPEEDS, gradients=3_000, progress=False)
    page.open(write_report({"one": run}, tmp_path / "many.html"))
    page.point_at("#timeline-chart .chart > svg", across=0.5, down=0.6)
    assert re.search(r"worker [012]from [\d.,]+ sto [\d.,]+ sapplied \d+", text(page, "#timeline-chart .readout"))
    page.click("#timeline-chart .toolbar > button:not(.reset)")
    page.point_at("#timeline-chart .chart > svg", across=0.5, down=0.6)
    assert "version" in text(page, "#timeline-chart .readout")


def test_a_choice_of_run_changes_all_charts_of_workers(page):
    page.choose("#shares-chart select", "2")
    for chart in ("timeline", "heat", "shares"):
        assert page.ask(f"document.querySelector('#{chart}-chart select').value") == "2"


def test_delays_over_time_are_told_by_worker_and_can_be_zoomed(page):
    page.point_at("#heat-chart .chart > svg", across=0.5, down=0.15)
    assert re.match(r"worker 3time [\d.]+ to [\d.]+ s \d+ steps", text(page, "#heat-chart .readout"))
    whole = x_ticks(page, "heat")
    page.drag("#heat-chart .chart > svg", 0.2, 0.5)
    assert x_ticks(page, "heat") != whole
    page.click("#heat-chart .reset")
    assert x_ticks(page, "heat") == whole


def test_delays_can_be_seen_by_run_and_by_worker(page):
    assert texts(page, "#delays-chart text.mark") == ["M = 4"]
    page.point_at("#delays-chart .chart > svg", across=0.3)
    assert re.match(r"delays? \d+", text(page, "#delays-chart .at"))
    longest = texts(page, "#delays-chart .range")
    page.choose("#delays-chart select", "3")
    assert texts(page, "#delays-chart .range") != longest
    page.click("#delays-chart .row:nth-child(2) .only")
    assert page.ask("document.querySelectorAll('#delays-chart path.band').length") == 1


def test_shares_follow_the_run_and_show_the_fair_share(page):
    page.choose("#shares-chart select", "1")
    assert page.ask("document.querySelectorAll('#shares-chart rect.bar').length") == 4
    assert text(page, "#shares-chart text.mark") == "equal share 1/M = 25 %"
    page.point_at("#shares-chart .chart > svg", across=0.2)
    assert text(page, "#shares-chart .readout").startswith("worker 3share")


# Sweeps


def test_a_stepsize_that_diverged_is_a_cross_and_does_not_set_the_axis(page):
    assert page.ask("document.querySelectorAll('#sweeps-chart path.cross').length") == 1
    assert page.ask("document.querySelectorAll('#sweeps-chart circle.point').length") == 3
    highest = texts(page, "#sweeps-chart .chart > svg > g:first-child > g:nth-child(2) text")[-1]
    assert highest in {"0.01", "10⁻²", "0.1", "10⁻¹"}
    page.ask("document.querySelector('#sweeps-chart .chart > svg').focus()")
    page.press("End")
    assert text(page, "#sweeps-chart .at").startswith("stepsize 80")
    assert text(page, "#sweeps-chart .value") == "diverged"
    assert "diverged" in text(page, "#stepsizes-chart .legend")


# Everything else


def test_the_theme_follows_the_system_and_the_button(page):
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.ask(background)
    page.click("#theme")
    assert text(page, "#theme") == "Light theme"
    dark = page.ask(background)
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(20, 23, 27)")
    page.click("#theme")
    assert page.ask(background) == light
    page.ask("delete document.documentElement.dataset.theme")
    page.prefer("dark")
    page.wait_until(f"{background} === '{dark}'")


@pytest.mark.parametrize(("width", "height"), [(390, 844), (320, 640), (768, 1024)])
def test_nothing_is_wider_than_a_narrow_screen(page, width, height):
    page.resize(width, height, mobile=True)
    assert page.ask("document.documentElement.scrollWidth") <= width
    for chart in CHARTS:
        page.point_at(f"#{chart}-chart .chart > svg", across=0.6)
    assert page.ask("document.documentElement.scrollWidth") <= width


def test_on_a_phone_no_column_is_off_the_screen(page):
    page.resize(390, 844, mobile=True)
    wide = "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth).length"
    assert page.ask(wide) == 0
    right = "Math.max(...[...document.querySelectorAll('td, th')].map((cell) => cell.getBoundingClientRect().right))"
    assert page.ask(right) <= 390


def test_charts_are_drawn_anew_for_another_width(page):
    box = f"document.querySelector('{PLOT}').getAttribute('viewBox')"
    wide = page.ask(box)
    page.resize(600, 800)
    page.wait_until(f"{box} !== '{wide}'")


def test_buttons_and_boxes_are_reached_by_keyboard(page):
    reached = page.ask(
        "[...document.querySelectorAll('button, select, input, .chart > svg, .brush > svg')]"
        ".filter((element) => element.checkVisibility())"
        ".every((element) => { element.focus(); return document.activeElement === element })"
    )
    assert reached
    page.ask("document.querySelector('#errors-chart [data-value=step]').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r")
    page.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter")
    page.wait_until("document.querySelector('#errors-chart [data-value=step]').ariaPressed === 'true'")


def test_twenty_runs_have_a_legend_that_scrolls(page, tmp_path):
    runs = [nw.simulate(PROBLEM, constant(size), SPEEDS, gradients=50) for size in np.geomspace(0.01, 0.2, 20)]
    page.open(write_report(runs, tmp_path / "twenty.html"))
    assert page.ask(LINES) == 20
    rows = "document.querySelector('#errors-chart .rows')"
    assert page.ask(f"{rows}.scrollHeight > {rows}.clientHeight")
    assert page.ask("document.querySelector('#errors-chart .legend').getBoundingClientRect().bottom") < 900
    names = texts(page, "#errors-chart .name span")
    assert names[0] == "stepsize 0.01"
    assert len(set(names)) == 20


def test_it_prints_in_light(page):
    page.click("#theme")
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.call("Emulation.setEmulatedMedia", media="")
    assert page.call("Page.printToPDF")["data"].startswith("JVBERi")
