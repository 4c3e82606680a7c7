"""The HTML that notebooks show: escaped, without scripts, and whole for every result."""

import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import nowait as nw
from nowait.html import card, preformatted, sentences, sparkline, table
from nowait.html.elements import LONGEST_TEXT, MOST_ROWS
from nowait.recording import TraceRecorder

PROBLEM = nw.problems.NoisyQuadratic(dimension=4, sigma=0.1)
SPEEDS = nw.speeds.Exponential([1.0, 1.0, 8.0])
HOSTILE = "<script>alert('1')</script>\"&"


class Elements(HTMLParser):
    """Checks that elements are closed in order, and collects their names and the text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.names, self.text = [], set(), ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.names.add(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def results():
    run = nw.simulate(PROBLEM, nw.RingmasterASGD(nw.Constant(0.1), max_delay=3), SPEEDS, steps=60)
    diverged = nw.simulate(PROBLEM, nw.AsynchronousSGD(nw.Constant(1e3)), SPEEDS, steps=60)
    makers = {
        "minibatch": lambda gamma: nw.MinibatchSGD(nw.Constant(gamma)),
        HOSTILE: lambda gamma: nw.AsynchronousSGD(nw.Constant(gamma)),
    }
    method = nw.AsynchronousSGD(nw.Constant(1.0))
    return {
        "run": run,
        "diverged": diverged,
        "history": run.history,
        "trace": run.trace,
        "empty trace": TraceRecorder([0]).trace(seconds=0.0, last_norm=0.0),
        "sweep": nw.sweep(PROBLEM, method, SPEEDS, stepsizes=[0.1, 1e3], seeds=2, steps=50),
        "race": nw.race(PROBLEM, makers, engine="simulate", speeds=SPEEDS, gradients=100),
        "advice": nw.plan(PROBLEM, speeds=SPEEDS, seeds=1, gradients=200, progress=False),
        "certificate": nw.certify(settings=["convex"], patterns=["equal"], steps=50, seeds=2, progress=False),
        "tuning": nw.tune(PROBLEM, method, speeds=SPEEDS, steps=30, progress=False),
        "tolerance": nw.tolerance(
            PROBLEM, {HOSTILE: nw.Sgd()}, delays=[1, 2], steps=20, seeds=1, trials=3, progress=False
        ),
        "whatif": nw.whatif(nw.speeds.Recorded.of([[1.0, 2.0, 1.5], [4.0, 5.0, 4.5]])),
        "reproduction": nw.reproduce("rennala", quick=True, progress=False),
    }


WORDS = {
    "run": "RingmasterASGD",
    "diverged": "diverged",
    "history": "lowest",
    "trace": "worker 2",
    "empty trace": "Trace of 0 arrivals",
    "sweep": "2 of 2 diverged",
    "race": "minibatch",
    "advice": "seconds to the target",
    "certificate": "holds",
    "tuning": "best",
    "tolerance": "measured mean",
    "whatif": "asynchronous",
    "reproduction": "the paper reports",
}


@pytest.mark.parametrize("name", WORDS)
def test_a_result_shows_itself_without_scripts_or_links(name, results):
    page = Elements(results[name]._repr_html_())
    assert WORDS[name] in page.text
    assert page.names <= {"b", "circle", "div", "pre", "polyline", "span", "svg", "table", "td", "th", "title", "tr"}


def test_colours_are_those_of_the_notebook(results):
    """No colour is fixed, so that the text is readable on light and on dark backgrounds."""
    for result in results.values():
        for colour in re.findall(r"(?:color:|background:|stroke=\"|fill=\")([^;\"]+)", result._repr_html_()):
            assert colour in ("currentColor", "none", "inherit"), colour


def test_text_is_escaped():
    for piece in (card(HOSTILE, note=HOSTILE), table([HOSTILE], [[HOSTILE]]), sentences([HOSTILE])):
        assert "<script" not in piece
        assert HOSTILE in Elements(piece).text
    assert Elements(preformatted("a  <b>")).text == "a  <b>"
    assert "<script" not in sparkline([1.0, 2.0], HOSTILE)


def test_a_long_table_and_a_long_text_are_cut():
    made = Elements(table(["n"], [[str(number)] for number in range(MOST_ROWS + 5)]))
    assert "and 5 more" in made.text
    long = "x" * (LONGEST_TEXT + 1)
    assert long not in Elements(table(["n"], [[long]])).text
    assert f'title="{long}"' in table(["n"], [[long]])


def heights(line):
    return [float(pair.split(",")[1]) for pair in re.findall(r'points="([^"]+)"', line)[0].split()]


def test_a_sparkline_is_logarithmic_if_positive_values_span_decades():
    first, middle, last = heights(sparkline([100.0, 10.0, 1.0]))
    assert middle == pytest.approx((first + last) / 2, abs=0.1)
    first, middle, last = heights(sparkline([4.0, 1.0, 0.0]))
    assert middle == pytest.approx(last - (last - first) / 4, abs=0.1)


def test_a_sparkline_leaves_a_gap_where_values_are_not_finite():
    line = sparkline([1.0, 2.0, math.nan, 3.0, 2.0, math.inf, 1.0])
    assert line.count("<polyline") == 2
    assert line.count("<circle") == 1
    assert sparkline([math.inf]) == sparkline([]) == ""


def test_a_long_sparkline_is_thinned_and_keeps_its_ends():
    points = heights(sparkline(np.linspace(5.0, 1.0, 10_001)))
    assert len(points) == 120
    assert points[0] == min(points)
    assert points[-1] == max(points)
