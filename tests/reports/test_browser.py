"""The report in a real browser: every control works, and nothing is logged, loaded or clipped."""

import re

import pytest

import nowait as nw
from nowait.reports import write_report
from reports.browser import PROGRAM, Browser

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on the PATH")

PROBLEM = nw.problems.NoisyQuadratic(dimension=4, sigma=0.1)
SPEEDS = nw.speeds.Exponential([1.0, 1.0, 2.0, 12.0])
LONG_NAME = "Ringmaster_with_a_name_that_is_long_and_cannot_be_broken_in_two"
LINES = "document.querySelectorAll('#errors-chart path.line').length"


def simulate(method, seed=0):
    return nw.simulate(PROBLEM, method, SPEEDS, seconds=150, seed=seed, progress=False)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    runs = {
        "Minibatch": simulate(nw.MinibatchSGD(nw.Constant(0.5))),
        "Async": [simulate(nw.AsynchronousSGD(nw.DelayAdaptive(0.1)), seed) for seed in range(3)],
        LONG_NAME: simulate(nw.RingmasterASGD(nw.Constant(0.1), max_delay=6)),
        "<i>diverged</i>": simulate(nw.AsynchronousSGD(nw.Constant(80.0))),
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
    browser.resize(1280, 800)
    browser.open(report)
    yield browser
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:"))] == []


def text(page, selector):
    return page.ask(f"document.querySelector('{selector}').textContent")


def pressed(page, selector):
    return page.ask(f"document.querySelector('{selector}').getAttribute('aria-pressed')") == "true"


def drawn_path(page):
    return page.ask("document.querySelector('#errors-chart path[data-method=Minibatch]').getAttribute('d')")


def tip(page, chart):
    """Wait for the tooltip of a chart and return its text."""
    page.wait_until(f"!document.querySelector('#{chart}-chart .tip').hidden")
    return text(page, f"#{chart}-chart .tip")


def test_every_part_is_drawn(page):
    for chart in ("errors", "delays", "timeline", "shares"):
        assert page.ask(f"document.querySelector('#{chart}-chart svg').getAttribute('aria-label').length") > 20
    assert page.ask("[...document.querySelectorAll('h2')].map((heading) => heading.textContent)") == [
        "Summary",
        "Error",
        "Delays",
        "Timeline of the first jobs",
        "Share of the work",
        "Theory and measurement",
        "Configuration",
    ]
    assert page.ask(LINES) == 4
    assert page.ask("document.querySelectorAll('#errors-chart path.band').length") == 1
    assert page.ask("document.querySelectorAll('i').length") == 0


def test_no_number_on_the_page_is_broken(page):
    for axis in ("gradients", "step", "time"):
        page.click(f"[data-axis={axis}]")
        for switch in ("#errors-log-x", "#errors-log-y"):
            page.click(switch)
            drawn = page.ask("document.body.innerHTML.split('<script')[0]")
            assert not re.search(r"NaN|undefined|Infinity", drawn)


def test_the_axis_can_be_switched(page):
    seen = {drawn_path(page)}
    for axis, title in (("gradients", "gradients"), ("step", "steps"), ("time", "time (s)")):
        page.click(f"[data-axis={axis}]")
        assert pressed(page, f"[data-axis={axis}]")
        assert page.ask("document.querySelectorAll('#errors-axis [aria-pressed=true]').length") == 1
        assert text(page, "#errors-chart text.title") == title
        seen.add(drawn_path(page))
    assert len(seen) == 3


@pytest.mark.parametrize("switch", ["#errors-log-x", "#errors-log-y"])
def test_scales_can_be_switched_there_and_back(page, switch):
    before, was = drawn_path(page), pressed(page, switch)
    page.click(switch)
    assert pressed(page, switch) is not was
    assert drawn_path(page) != before
    page.click(switch)
    assert drawn_path(page) == before


def test_the_legend_switches_methods_off_and_on(page):
    second = "#errors-legend button:nth-child(2)"
    page.click(second)
    assert not pressed(page, second)
    assert page.ask(LINES) == 3
    page.click(second)
    assert pressed(page, second)
    assert page.ask(LINES) == 4


def test_all_methods_can_be_switched_off(page):
    for place in range(1, 5):
        page.click(f"#errors-legend button:nth-child({place})")
    assert page.ask(LINES) == 0


def test_pointing_at_the_curves_tells_the_values_of_all_methods(page):
    page.point_at("#errors-chart svg", across=0.6)
    told = tip(page, "errors")
    assert re.match(r"after [0-9.]+ sMinibatch0\.\d+Async", told)
    assert "<i>diverged</i>" in told
    page.point_at("h1")
    page.wait_until("document.querySelector('#errors-chart .tip').hidden")


def test_touching_the_curves_tells_them_too(page):
    place = page.point_at("#errors-chart svg", across=0.3)
    page.point_at("h1")
    page.ask("document.querySelector('#errors-chart').scrollIntoView({block: 'center'})")
    page.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[place])
    page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    assert "Minibatch" in tip(page, "errors")


def test_arrow_keys_tell_values_without_a_mouse(page):
    page.ask("document.querySelector('#errors-chart svg').focus()")
    page.press("ArrowRight")
    first = tip(page, "errors")
    assert first.startswith("after 0 s")
    page.press("End")
    page.wait_until(f"document.querySelector('#errors-chart .tip').textContent !== {first!r}")
    page.press("Escape")
    page.wait_until("document.querySelector('#errors-chart .tip').hidden")


def test_delays_can_be_seen_by_method_and_by_worker(page):
    marks = "[...document.querySelectorAll('#delays-chart text.mark')].map((mark) => mark.textContent)"
    assert page.ask(marks) == ["M = 4"]
    page.choose("#delays-method", "1")
    everybody = page.ask(marks)
    assert everybody[0] == "M = 4"
    assert everybody[1].startswith("τ_max = ")
    page.choose("#delays-worker", "3")
    assert len(page.ask(marks)) == 2
    page.point_at("#delays-chart svg", across=0.3)
    assert re.match(r"delays? \d+.*Async\d+", tip(page, "delays"))


def test_the_timeline_tells_of_every_job(page):
    page.choose("#timeline-method", "2")
    assert "dropped" in text(page, "#timeline-legend")
    assert page.ask("document.querySelectorAll('#timeline-chart rect.job').length") > 50
    page.point_at("#timeline-chart rect.job:nth-child(9)")
    told = tip(page, "timeline")
    for word in ("worker", "job", "version", "delay", "step", "started", "arrived", "compute time"):
        assert word in told


def test_dropped_work_has_a_pattern(page):
    page.choose("#timeline-method", "2")
    fills = page.ask("[...document.querySelectorAll('#timeline-chart rect.job')].map((job) => job.style.fill)")
    assert set(fills) == {"var(--applied)", 'url("#fill-dropped")'}


def test_shares_follow_the_method_and_show_the_fair_share(page):
    page.choose("#shares-method", "1")
    assert page.ask("document.querySelectorAll('#shares-chart rect.share').length") == 4
    assert text(page, "#shares-chart text.mark") == "equal share 1/M = 25 %"
    page.point_at("#shares-chart svg", across=0.9)
    assert tip(page, "shares").startswith("worker 3share")


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
    for chart in ("errors", "delays", "timeline", "shares"):
        page.point_at(f"#{chart}-chart svg", across=0.6)
    page.point_at("#errors-chart svg", across=0.6)
    tip(page, "errors")
    assert page.ask("document.documentElement.scrollWidth") <= width
    assert page.ask("document.querySelector('#summary .scroll').scrollWidth") > width


def test_charts_are_drawn_anew_for_another_width(page):
    box = "document.querySelector('#errors-chart svg').getAttribute('viewBox')"
    wide = page.ask(box)
    page.resize(600, 800)
    page.wait_until(f"{box} !== '{wide}'")


def test_buttons_and_boxes_are_reached_by_keyboard(page):
    reached = page.ask(
        "[...document.querySelectorAll('button, select, .chart > svg')]"
        ".every((element) => { element.focus(); return document.activeElement === element })"
    )
    assert reached
    page.ask("document.querySelector('[data-axis=step]').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r")
    page.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter")
    page.wait_until("document.querySelector('[data-axis=step]').getAttribute('aria-pressed') === 'true'")


def test_it_prints_in_light(page):
    page.click("#theme")
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.call("Emulation.setEmulatedMedia", media="")
    assert page.call("Page.printToPDF")["data"].startswith("JVBERi")
