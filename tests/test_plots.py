"""Figures: what they show, not how they look."""

import pytest

import nowait as nw

PROBLEM = nw.problems.NoisyQuadratic(dimension=4, sigma=0.1)
SPEEDS = nw.speeds.Exponential([1.0, 1.0, 8.0])


@pytest.fixture(scope="module")
def runs():
    return {
        "minibatch": nw.simulate(PROBLEM, nw.MinibatchSGD(nw.Constant(0.5)), SPEEDS, seconds=100.0),
        "asynchronous": nw.simulate(PROBLEM, nw.AsynchronousSGD(nw.DelayAdaptive(0.1)), SPEEDS, seconds=100.0),
    }


@pytest.mark.parametrize("axis", ["time", "gradients", "step"])
def test_errors_are_drawn_against_any_axis(runs, axis):
    [axes] = nw.plots.errors(runs, axis=axis).axes
    assert axes.get_yscale() == "log"
    for line, (name, run) in zip(axes.lines, runs.items(), strict=True):
        assert line.get_label() == name
        assert line.get_xdata().tolist() == getattr(run.history, axis).tolist()
        assert line.get_ydata().tolist() == run.history.loss.tolist()


def test_delays_show_the_number_of_workers(runs):
    [axes] = nw.plots.delays(runs).axes
    assert "M = 3" in [text.get_text() for text in axes.get_legend().get_texts()]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_the_race_has_three_panels_and_saves(runs, tmp_path):
    figure = nw.plots.race(runs, minimum=0.0)
    assert len(figure.axes) == 3
    for ending in ("png", "pdf", "svg"):
        figure.savefig(tmp_path / f"race.{ending}")
        assert (tmp_path / f"race.{ending}").stat().st_size > 1_000


def test_an_unknown_axis_is_refused(runs):
    with pytest.raises(ValueError, match="axis must be one of time, gradients, step, got 'epochs'"):
        nw.plots.errors(runs, axis="epochs")


def test_runs_must_be_named(runs):
    for wrong in (runs["minibatch"], {}, [runs["minibatch"]]):
        with pytest.raises(TypeError, match="runs must be named"):
            nw.plots.race(wrong)


def test_a_sweep_shows_the_median_and_what_diverged(tmp_path, caplog):
    sizes = [0.01, 0.1, 1.0, 100.0]
    result = nw.sweep(
        PROBLEM, nw.AsynchronousSGD(nw.Constant(1.0)), SPEEDS, stepsizes=sizes[::-1], seeds=range(3), steps=200
    )
    final, curves = nw.plots.sweep(result).axes
    steady = [size for size, diverged in zip(sizes[::-1], result.diverged.any(axis=1), strict=True) if not diverged]
    assert final.lines[0].get_xdata().tolist() == steady[::-1]
    assert len(final.lines) == 1 + len(sizes) - len(steady)
    assert len(curves.lines) == 3
    assert curves.lines[0].get_ydata().tolist() == result.curves[result.best_place, 0].tolist()


def test_a_sweep_that_only_diverged_can_be_drawn(caplog):
    method = nw.AsynchronousSGD(nw.Constant(1.0))
    result = nw.sweep(PROBLEM, method, SPEEDS, stepsizes=[1e3, 1e4], steps=200)
    assert [len(axes.lines) for axes in nw.plots.sweep(result).axes] == [3, 0]


def test_a_sweep_draws_a_sweep_alone(runs):
    with pytest.raises(TypeError, match=r"sweep draws what nw.sweep returned"):
        nw.plots.sweep(runs)
