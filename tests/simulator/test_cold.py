"""Short runs with a cold compilation cache, and the message that code is being compiled."""

import math

import numpy as np
import pytest

import nowait as nw
from nowait.engines import progress
from nowait.engines.budget import Budget
from nowait.engines.simulator import cold

QUADRATIC = nw.problems.NoisyQuadratic(dimension=5, sigma=0.1)
SPEEDS = nw.speeds.Fixed([1.0, 2.0, 4.0])
METHOD = nw.AsynchronousSGD(nw.Constant(0.1))


@pytest.fixture
def nothing_compiled(monkeypatch):
    monkeypatch.setattr(cold, "is_ready", lambda kernel: False)
    monkeypatch.setattr(cold, "PATIENCE", cold.Patience(100))


def way_of(problem=QUADRATIC, **options):
    return nw.simulate(problem, METHOD, SPEEDS, **options).stats.engine


def test_short_runs_are_not_compiled_until_they_add_up(nothing_compiled):
    assert [way_of(gradients=40) for _ in range(3)] == ["reference", "reference", "compiled"]


def test_a_short_run_is_compiled_where_the_code_is_there(nothing_compiled, monkeypatch):
    monkeypatch.setattr(cold, "is_ready", lambda kernel: True)
    assert way_of(gradients=40) == "compiled"


def test_a_short_run_whose_last_digits_would_differ_is_compiled(nothing_compiled):
    assert way_of(nw.problems.LeastSquares.random(20, 5), gradients=10) == "compiled"
    assert way_of(gradients=10, output=nw.UniformAverage()) == "compiled"


@pytest.mark.parametrize("problem", [QUADRATIC, nw.problems.LeastSquares.random(30, 20, batch_size=9)])
def test_a_short_run_records_the_same_bits_either_way(nothing_compiled, problem):
    first = nw.simulate(problem, METHOD, SPEEDS, gradients=100)
    second = nw.simulate(problem, METHOD, SPEEDS, gradients=100)
    assert (first.stats.engine, second.stats.engine) == ("reference", "compiled")
    assert np.array_equal(first.trace.arrivals, second.trace.arrivals)
    assert np.array_equal(first.params, second.params)
    assert first.history.rows() == second.history.rows()
    assert first.trace.last_norm == second.trace.last_norm


def test_how_many_gradients_a_budget_allows():
    class Own(nw.speeds.Speeds):
        num_workers = 3

        def timing(self, seed):
            raise AssertionError("not needed")

    assert cold.most_gradients(Budget(steps=10), SPEEDS, 0) == 30
    assert cold.most_gradients(Budget(gradients=20, steps=10), SPEEDS, 0) == 20
    assert cold.most_gradients(Budget(seconds=8.0), SPEEDS, 0) == 14
    assert cold.most_gradients(Budget(seconds=8.0), Own(), 0) == math.inf
    assert cold.most_gradients(Budget(target_loss=0.1), SPEEDS, 0) == math.inf


def test_the_first_compilation_is_announced_once_and_only_where_a_bar_is_shown(capsys, monkeypatch):
    from numba import njit

    said = []
    monkeypatch.setattr(progress, "write_compiling_line", lambda: said.append("compiling"))
    progress.report_compiling.cache_clear()
    with progress.Progress("", shown=False):
        njit(lambda value: value + 1)(1)
    assert said == []
    with progress.Progress("", shown=True):
        njit(lambda value: value + 2)(1)
    assert said == ["compiling"]
    monkeypatch.undo()
    progress.write_compiling_line.cache_clear()
    progress.write_compiling_line()
    progress.write_compiling_line()
    assert capsys.readouterr().err.count("compiling, once") == 1
