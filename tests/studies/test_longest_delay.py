"""The effect of the longest delay, as numbers and as a figure."""

import numpy as np
import pytest

import nowait as nw
from nowait.studies import longest_delay


@pytest.fixture(scope="module")
def study():
    return longest_delay(progress=False)


def test_the_delay_adaptive_error_stays_put_while_the_longest_delay_grows_a_thousandfold(study):
    assert study.max_delay[-1] / study.max_delay[0] == 1_000
    adaptive, same, shrunk = study.errors.values()
    assert adaptive.max() < 2 * adaptive.min()
    assert same[-1] > 1e4 * adaptive[-1], "the same constant stepsize fails"
    assert shrunk[-1] > 1e4 * adaptive[-1], "one that shrinks with the longest delay gets nowhere"
    assert same[0] == adaptive[0] == shrunk[0], "with equal workers they are the same method"


def test_the_guarantees_tell_the_same(study):
    new, old = study.guarantees.values()
    assert np.ptp(new) == 0
    assert old[-1] / old[0] == pytest.approx(1_000, rel=0.01)


def test_it_is_drawn(study, tmp_path):
    figure = nw.plots.longest_delay(study)
    left, right = figure.axes
    assert [line.get_label() for line in left.lines] == list(study.errors)
    assert [line.get_label() for line in right.lines] == list(study.guarantees)
    assert "M = 8" in left.get_xlabel()
    figure.savefig(tmp_path / "figure.png")
