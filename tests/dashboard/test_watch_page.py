"""The page of ``nowait watch`` in a real browser: what it shows, and every control."""

import re

import pytest

import nowait as nw
from dashboard.written import WrittenRun, events_of, jobs_of_workers
from nowait.core.notes import Note
from nowait.dashboard import site
from nowait.recording.phases import LOST
from reports.browser import PROGRAM, Browser

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on the PATH")

TOKEN = "a-token-for-tests"
HOSTILE = "<img src=x onerror=alert(1)>"
ROWS = jobs_of_workers([1.0, 1.0, 1.2, 15.0], until=60.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run with twelve workers, and a run with a strange name that was killed."""
    path = tmp_path_factory.mktemp("runs")
    problem, method = nw.problems.NoisyQuadratic(dimension=3), nw.MinibatchSGD(nw.Constant(0.1))
    speeds = nw.speeds.Fixed([1.0] * 11 + [3.0])
    nw.simulate(problem, method, speeds, steps=300, progress=False).save(path / "done")
    killed = WrittenRun(path / HOSTILE, workers=2)
    killed.write(ROWS[ROWS["worker"] < 2])
    killed.evaluate(3, 2.0, 1.0, accuracy=0.5)
    killed.close()
    return path


@pytest.fixture(scope="module")
def live(folder):
    """A run with a straggler that is running."""
    run = WrittenRun(folder / "live", workers=4)
    run.write(ROWS[:100], events_of((50, LOST, 2, 25.0)), [Note(40, 20.0, "bucket", {"size": 4.0})])
    for step in range(1, 20):
        run.evaluate(10 * step, float(step), 2.0 / step, accuracy=1 - 1 / step)
    run.checkpoint(60)
    yield run
    run.close()


@pytest.fixture(scope="module")
def watcher(folder, live):
    with nw.watch(folder, token=TOKEN, open_browser=False) as watcher:
        yield watcher


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    browser.resize(1280, 800)
    yield browser
    browser.close()


def opened(browser, watcher):
    browser.prefer("light")
    browser.open_url(watcher.url)
    browser.wait_until("document.querySelectorAll('.workers tbody tr').length > 0")
    return browser


@pytest.fixture
def page(browser, watcher):
    """Open the page; afterwards, check that it logged no error and asked no other server."""
    browser.resize(1280, 800)
    yield opened(browser, watcher)
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))] == []


def text(page, selector):
    return page.ask(f"document.querySelector({selector!r}).textContent")


def count(page, selector):
    return page.ask(f"document.querySelectorAll({selector!r}).length")


def focus_on(page, name):
    page.ask(f"[...document.querySelectorAll('.card')].find((card) => card.textContent.includes({name!r})).click()")


def test_the_straggler_is_seen_first(page):
    assert re.match(r"Worker 3 is 1[0-9.]+ × slower than the others", text(page, "#verdict"))
    assert page.ask("document.querySelector('.workers tbody tr').dataset.worker") == "3"
    assert count(page, ".workers tr.straggler") == 1
    assert "worker 3 is" in text(page, ".card[aria-pressed=true]")
    assert text(page, "#timeline text[text-anchor=end]").startswith("3 · ")
    assert page.ask("document.querySelector('#verdict').getBoundingClientRect().bottom < innerHeight")


def test_the_token_leaves_the_address_and_the_state_of_every_run_is_shown(page):
    assert page.ask("location.search") == ""
    states = page.ask("[...document.querySelectorAll('.card')].map((card) => card.dataset.state).sort()")
    assert states == ["finished", "killed", "running"]
    assert page.ask(f"[...document.querySelectorAll('.card .name')].some((name) => name.textContent === {HOSTILE!r})")
    assert count(page, "main img") == 0
    assert "killed at step" in page.ask("document.querySelector('.card[data-state=killed]').textContent")


def test_new_steps_and_losses_appear_without_a_reload(page, live):
    before = text(page, ".card[data-state=running] .numbers")
    live.write(ROWS[100:110])
    live.evaluate(400, 35.0, 0.0625)
    page.wait_until("document.querySelector('.card[data-state=running] .numbers').textContent.includes('0.0625')")
    assert text(page, ".card[data-state=running] .numbers") != before


def test_losses_errors_and_metrics_against_time_steps_and_gradients(page):
    title = "#curves text.title"
    assert count(page, "#curves path.line") == 3
    page.choose("#curves select", "error")
    assert "F* is not known" in text(page, "#curves .hint")
    page.ask("document.querySelector('#minimum').value = '0.5'")
    page.ask("document.querySelector('#minimum').dispatchEvent(new Event('input'))")
    values = "[...document.querySelectorAll('#curves .values .value')].map((value) => value.textContent)"
    assert "0.5" in page.ask(values)  # the run with the loss 1
    page.ask("document.querySelector('#minimum').value = 'x'")
    page.ask("document.querySelector('#minimum').dispatchEvent(new Event('input'))")
    assert page.ask("document.querySelector('#minimum').getAttribute('aria-invalid')") == "true"
    page.choose("#curves select", "accuracy")
    assert page.ask(f"[...document.querySelectorAll({title!r})].map((words) => words.textContent)") == [
        "time (s)",
        "accuracy",
    ]
    for axis, words in (("step", "steps"), ("gradients", "gradients"), ("time", "time (s)")):
        page.click(f"#curves .choice button[data-value={axis}]")
        assert text(page, title) == words
    page.click("#curves button[data-tool=logY]")
    assert page.ask("document.querySelector('#curves button[data-tool=logY]').getAttribute('aria-pressed')") == "false"


def test_deaths_and_checkpoints_are_marks(page):
    focus_on(page, "live")
    assert count(page, "#curves .event-death") >= 1
    assert count(page, "#timeline .event-checkpoint") >= 1
    assert "worker lost (1)" in text(page, "#curves .marks")


def test_decisions_of_the_method_are_marks_and_the_last_is_a_sentence(page):
    focus_on(page, "live")
    assert count(page, "#curves .event-decision") >= 1
    assert "decision of the method (1)" in text(page, "#curves .marks")
    assert text(page, "#decision") == "Latest decision: bucket: size 4."
    focus_on(page, "done")
    assert page.ask("document.querySelector('#decision').hidden")


def test_a_card_puts_its_run_in_focus(page):
    focus_on(page, "done")
    assert text(page, "#workers-title") == "Who was slow done"
    assert page.ask("document.querySelector('.workers tbody tr').dataset.worker") == "11"
    assert count(page, ".workers tbody tr") == 10
    page.click("#workers .more")
    assert count(page, ".workers tbody tr") == 12
    page.click("#workers .more")
    assert count(page, ".workers tbody tr") == 10


def test_the_timeline_is_zoomed_by_views_drags_and_keys(page):
    focus_on(page, "live")
    first = "Number(document.querySelector('#timeline .chart text[text-anchor=middle]').textContent)"
    page.wait_until(f"{first} === 0")
    page.click("#timeline button[data-value='10']")
    page.wait_until(f"{first} > 15")
    page.wait_until("document.querySelectorAll('#timeline path.job').length > 0")
    page.click("#timeline button[data-value=whole]")
    page.wait_until(f"{first} === 0")
    place = page.point_at("#delays .chart svg", across=0.5)
    page.call("Input.dispatchMouseEvent", type="mousePressed", button="left", clickCount=1, **place)
    moved = place | {"x": place["x"] + 200}
    page.call("Input.dispatchMouseEvent", type="mouseMoved", button="left", **moved)
    page.call("Input.dispatchMouseEvent", type="mouseReleased", button="left", clickCount=1, **moved)
    page.wait_until(f"{first} > 5")
    assert not page.ask("document.querySelector('#timeline .reset').hidden")
    page.wait_until("document.querySelector('#delays .chart text[text-anchor=middle]').textContent !== '0'")
    page.click("#timeline .reset")
    page.wait_until(f"{first} === 0")
    page.ask("document.querySelector('#timeline .brush svg').focus()")
    page.press("+")
    page.wait_until(f"{first} > 0")
    page.ask("document.querySelector('#timeline .chart svg').focus()")
    page.press("End")
    assert "worker" in text(page, "#timeline .readout")


def test_speed_can_be_steps_gradients_or_delays(page):
    for value, words in (
        ("arrivals", "gradients per second"),
        ("longest", "longest delay"),
        ("steps", "steps per second"),
    ):
        page.choose("#speed select", value)
        assert words in page.ask("[...document.querySelectorAll('#speed text.title')].map((each) => each.textContent)")


def test_pausing_stops_the_updates_and_going_on_catches_up(page, live):
    page.click("#pause")
    page.wait_until("document.querySelector('#connection').textContent === 'paused'")
    live.evaluate(500, 36.0, 0.03125)
    page.click("#pause")
    page.wait_until("document.querySelector('.card[data-state=running] .numbers').textContent.includes('0.0313')")
    assert text(page, "#connection") == "live"


def test_a_hidden_page_asks_for_nothing(page):
    counting = "(...given) => { asked += 1; return before(...given) }"
    page.ask(f"(() => {{ window.asked = 0; const before = window.fetch; window.fetch = {counting} }})()")
    page.ask("Object.defineProperty(document, 'hidden', { configurable: true, get: () => window.isHidden })")
    asked = "(() => { document.dispatchEvent(new Event('visibilitychange')); return asked })()"
    page.ask("(window.isHidden = true, document.dispatchEvent(new Event('visibilitychange')))")
    before = page.ask(asked)
    assert page.ask(asked) == before
    page.ask("window.isHidden = false")
    page.wait_until(f"{asked} > {before}")


def test_charts_can_be_downloaded_under_the_content_policy(page):
    page.ask(
        "(() => { window.saved = []; HTMLAnchorElement.prototype.click = function () { saved.push(this.download) } })()"
    )
    for kind in ("CSV", "SVG", "PNG"):
        page.click(f"#curves button[title='Download as {kind}']")
    page.wait_until("saved.length === 3")
    assert page.ask("saved.sort()") == ["progress.csv", "progress.png", "progress.svg"]


def test_the_theme_can_be_changed(page):
    before = page.ask("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.ask("getComputedStyle(document.body).backgroundColor") != before
    assert text(page, "#theme") == "Light theme"


def test_on_a_phone_nothing_is_off_the_screen(page):
    page.resize(390, 844, mobile=True)
    assert page.ask("document.documentElement.scrollWidth") == 390
    cells = "[...document.querySelectorAll('.workers td')].every((cell) => cell.getBoundingClientRect().right <= 390)"
    assert page.ask(cells)


def test_other_runs_can_be_chosen(browser, folder, live, monkeypatch):
    monkeypatch.setattr(site, "DEFAULT_SHOWN", 1)
    with nw.watch(folder, open_browser=False) as watcher:
        page = opened(browser, watcher)
        assert count(page, ".card") == 1
        assert text(page, "#list summary") == "1 of 3 runs are shown: choose others"
        page.click("#list summary")
        page.ask("document.querySelector('#find').value = 'done'")
        page.ask("document.querySelector('#find').dispatchEvent(new Event('input'))")
        assert count(page, "#choices input") == 1
        page.click("#choices input")
        page.wait_until("document.querySelectorAll('.card').length === 2")
        page.click("#choices input")
        page.wait_until("document.querySelectorAll('.card').length === 1")
        assert browser.complaints() == []


def test_a_run_appears_when_it_starts(browser, tmp_path):
    with nw.watch(tmp_path / "later", open_browser=False) as watcher:
        browser.open_url(watcher.url)
        browser.wait_until("document.querySelector('#empty').textContent.startsWith('There is no run yet in')")
        run = WrittenRun(tmp_path / "later" / "first")
        browser.wait_until("document.querySelectorAll('.card').length === 1")
        assert "no step yet" in text(browser, ".card")
        run.write(ROWS)
        browser.wait_until("document.querySelectorAll('.workers tbody tr').length > 0")
        assert browser.complaints() == []
        run.close()


def test_the_page_says_that_the_server_is_gone_and_connects_again(browser, folder, live):
    with nw.watch(folder, token=TOKEN, open_browser=False) as first:
        page = opened(browser, first)
        port = first._server.host_and_port[1]
    page.wait_until("document.querySelector('#connection').textContent === 'server gone'")
    assert f"nowait watch {folder}" in text(page, "#gone")
    assert count(page, ".workers tbody tr") > 0  # the last it sent stays on the page
    with nw.watch(folder, token=TOKEN, port=port, open_browser=False):
        page.wait_until("document.querySelector('#connection').textContent === 'live'")
        assert page.ask("document.querySelector('#gone').hidden")
    with nw.watch(folder, port=port, open_browser=False):
        page.wait_until("document.querySelector('#connection').textContent === 'not allowed'")
        assert "another token" in text(page, "#gone")
