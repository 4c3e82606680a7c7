"""The page of the benchmark in a real browser: every control works, and nothing is logged, loaded or clipped."""

import math

import pytest

from nowait.studies.bench.page import write_page
from nowait.studies.bench.records import Entry, Measured
from nowait.studies.bench.result import Bench
from nowait.studies.bench.suite import suite
from reports.browser import PROGRAM, Browser

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on the PATH")

TIMES = {"MinibatchSGD": (10.0, 12.0, 14.0), "RennalaSGD": (5.0, 6.0, math.inf), "<i>own.py:Mine</i>": (math.inf,) * 3}


def an_entry(method, times):
    runs = [
        Measured(seed, None if time == math.inf else time, 0.1, 1, 1, "", "", "") for seed, time in enumerate(times)
    ]
    config = {"method": f"{method}(Constant(0.1))", "update": "usual"}
    return Entry("digits", "equal", method, "", "usual", 0.1, config, None, tuple(runs))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser, tmp_path):
    header = {"version": "1", "digest": "0123456789abcdef", "nowait": "0.1.0", "date": "2026-11-18"}
    bench = Bench(header, tuple(an_entry(method, times) for method, times in TIMES.items()), ())
    browser.prefer("light")
    browser.resize(390, 844)
    browser.open(write_page(bench, suite("small"), tmp_path, "nowait bench"))
    yield browser
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:"))] == []


def shown(page, row, column):
    """Return the visible text of a cell of the table of times."""
    return page.ask(f"[...document.querySelectorAll('table')].at(-1).rows[{row}].cells[{column}].innerText")


def press(page, words):
    page.ask(f"[...document.querySelectorAll('button')].find(one => one.innerText === '{words}').click()")


def test_times_are_shown_as_seconds_multiples_and_ranks(page):
    assert [shown(page, 1, 1), shown(page, 2, 1), shown(page, 3, 1)] == ["6.0 5.0–∞", "12.0 10.0–14.0", "–"]
    press(page, "multiples of the best")
    assert [shown(page, 1, 1), shown(page, 2, 1)] == ["1.00", "2.00"]
    press(page, "ranks")
    assert [shown(page, 1, 1), shown(page, 2, 1)] == ["1", "2"]
    press(page, "seconds")
    assert shown(page, 2, 1) == "12.0 10.0–14.0"


def test_a_click_on_a_heading_sorts_and_a_second_one_sorts_the_other_way(page):
    heading = "[...document.querySelectorAll('table')].at(-1).querySelectorAll('th')[1].click()"
    page.ask(heading)
    assert shown(page, 1, 0) == "RennalaSGD"
    page.ask(heading)
    assert shown(page, 1, 0) == "<i>own.py:Mine</i>"


def test_only_tables_scroll_sideways_on_a_phone(page):
    assert page.ask("document.documentElement.scrollWidth") <= 390
