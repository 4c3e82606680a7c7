"""Figures: the data that they show."""

import pytest

import nowait as nw

PROBLEM = nw.problems.NoisyQuadratic(dimension=4, sigma=0.1)
SPEEDS = nw.speeds.Exponential([1.0, 1.0, 8.0])


def legend_of(figure):
    """Return the texts of the figure's legend; there is one, and none in a panel."""
    [legend] = figure.legends
    assert all(axes.get_legend() is None for axes in figure.axes)
    return [text.get_text() for text in legend.get_texts()]


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
    figure = nw.plots.delays(runs)
    [axes] = figure.axes
    assert "M = 3" in legend_of(figure)
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
    with pytest.raises(TypeError, match=r"sweep draws the result of nw.sweep"):
        nw.plots.sweep(runs)


def test_several_seeds_are_drawn_as_a_median_and_a_band(runs):
    method = nw.AsynchronousSGD(nw.DelayAdaptive(0.1))
    seeds = [nw.simulate(PROBLEM, method, SPEEDS, seconds=100.0, seed=seed) for seed in range(3)]
    [axes] = nw.plots.errors({"several": seeds, "one": runs["minibatch"]}).axes
    assert [line.get_label() for line in axes.lines] == ["several, median of 3", "one"]
    assert len(axes.collections) == 1


def test_the_longest_delay_is_marked(runs):
    longest = max(run.trace.delay.max() for run in runs.values())
    assert f"τ_max = {longest:,}" in legend_of(nw.plots.delays(runs))


def test_the_timeline_has_a_bar_for_every_job_by_what_became_of_it():
    method = nw.RingmasterASGD(nw.Constant(0.1), max_delay=2)
    run = nw.simulate(PROBLEM, method, nw.speeds.Fixed([1.0, 1.0, 9.0]), steps=100)
    figure = nw.plots.timeline(run, jobs=60)
    [axes] = figure.axes
    end = run.trace.time[59]
    assert len(axes.patches) == (run.trace.started < end).sum()
    assert max(bar.get_x() + bar.get_width() for bar in axes.patches) == end
    assert legend_of(figure) == ["applied", "dropped"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["2", "0", "1"], "the slowest is on top"


def test_shares_of_work_are_drawn_beside_the_fair_share(runs):
    [axes] = nw.plots.work_share(runs).axes
    shares = [run.stats.work_share.tolist() for run in runs.values()]
    assert [bar.get_height() for bar in axes.patches] == shares[0] + shares[1]
    [fair] = axes.lines
    assert fair.get_ydata()[0] == pytest.approx(1 / 3)


@pytest.mark.parametrize("wrong", [{}, [], {"a": 3}, {"a": []}, {"a": [3]}], ids=str)
def test_what_is_no_run_is_refused(wrong):
    with pytest.raises(TypeError, match="must be"):
        nw.plots.errors(wrong)
    with pytest.raises(TypeError, match="timeline draws one run"):
        nw.plots.timeline(wrong)


def test_runs_without_an_arrival_are_drawn_too():
    """No gradient arrives, for example in a very short race on a busy machine."""
    problem, method = nw.problems.NoisyQuadratic(3), nw.AsynchronousSGD(nw.Constant(0.1))
    run = nw.simulate(problem, method, nw.speeds.Fixed([5.0, 5.0]), seconds=1.0)
    assert len(run.trace) == 0
    figure = nw.plots.race({"nobody": run})
    assert figure.axes[2].get_yscale() == "linear"


def test_what_auto_waited_for_is_drawn_with_its_noise_scales():
    run = nw.simulate(PROBLEM, nw.Auto(0.1), nw.speeds.Fixed([1.0, 1.0, 1.0, 50.0]), steps=60)
    choices = [note.waiting for note in run.trace.notes]
    counts, noise, loss = nw.plots.waiting(run).axes
    assert counts.lines[0].get_ydata().tolist()[:-1] == [choice.waits_for for choice in choices]
    assert noise.lines[0].get_ydata().tolist() == [choice.noise for choice in choices if choice.noise]
    assert loss.lines[0].get_ydata().tolist() == run.history.loss.tolist()


def test_a_run_without_choices_has_no_such_figure(runs):
    with pytest.raises(ValueError, match="noted no choice of how many gradients a step waits for"):
        nw.plots.waiting(runs["minibatch"])
    with pytest.raises(TypeError, match="draws one run"):
        nw.plots.waiting(runs)
