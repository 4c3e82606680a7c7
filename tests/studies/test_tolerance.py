"""nw.tolerance: what is measured under which delays, and what counts as tolerated."""

import csv
import dataclasses
import math
import signal
import sys

import numpy as np
import pytest

import nowait as nw
from nowait.studies import ToleranceRow
from nowait.studies.tolerance_patterns import PATTERNS, STRAGGLER_EVERY

PROBLEM = nw.problems.NoisyQuadratic(dimension=4, mu=0.2, sigma=0.01)
METHOD = nw.AsynchronousSGD(nw.Constant(0.01))
UPDATES = {"sgd": nw.Sgd(), "adam": nw.Adam()}


def delays_of(pattern, delay, steps, seed=0):
    run = nw.simulate(PROBLEM, METHOD, PATTERNS[pattern](delay, steps, seed), steps=steps, seed=seed)
    return run.trace.delay


def studied(updates=UPDATES, **options):
    usual = {"steps": 30, "delays": [1, 4], "patterns": ["constant"], "trials": 3, "seeds": 2, "progress": False}
    return nw.tolerance(PROBLEM, updates, **usual | options)


def handmade(losses_by_delay, **options):
    """A study of one update whose losses are given, from a start of 10."""
    rows = [
        ToleranceRow("sgd", "constant", delay, False, 0.1, tuple(losses), float(delay), delay)
        for delay, losses in losses_by_delay.items()
    ]
    seeds = tuple(range(len(rows[0].losses)))
    return nw.Tolerance(
        problem="made by hand",
        steps=100,
        rule="Constant(gamma=1.0)",
        trials=6,
        seeds=seeds,
        delays=tuple(losses_by_delay),
        patterns=("constant",),
        updates=("sgd",),
        keep=0.95,
        start_loss=10.0,
        rows=rows,
        **options,
    )


@pytest.mark.parametrize("delay", [1, 2, 7])
def test_a_constant_delay_is_that_delay_after_the_first_steps(delay):
    assert delays_of("constant", delay, 40).tolist() == [min(step, delay) for step in range(1, 41)]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("delay", [2, 5, 16])
def test_every_pattern_has_the_stated_mean(pattern, delay):
    delays = delays_of(pattern, delay, 3_000)
    assert delays[500:].mean() == pytest.approx(delay, rel=0.02)


def test_uniform_delays_are_spread_evenly_up_to_twice_the_mean():
    delays = delays_of("uniform", 16, 6_000)[200:]
    counts, _ = np.histogram(delays, [0.5, 8.5, 16.5, 24.5])
    assert counts / len(delays) == pytest.approx([0.25, 0.25, 0.25], abs=0.03)
    assert 28 < delays.max() < 48
    assert delays_of("uniform", 16, 50, seed=1).tolist() != delays_of("uniform", 16, 50, seed=2).tolist()


def test_with_stragglers_most_gradients_are_fresh_and_the_others_are_very_old():
    delays = delays_of("straggler", 9, 400)[100:]
    old = STRAGGLER_EVERY * 8
    assert set(delays.tolist()) == {1, 2, old}
    assert np.mean(delays == old) == pytest.approx(1 / STRAGGLER_EVERY)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_delay_1_is_plain_sgd_under_every_pattern(pattern):
    run = nw.simulate(PROBLEM, METHOD, PATTERNS[pattern](1, 30, 0), steps=30)
    plain = nw.simulate(PROBLEM, METHOD, nw.speeds.Fixed([1.0]), steps=30)
    assert run.trace.delay.tolist() == [1] * 30
    assert run.params.tobytes() == plain.params.tobytes()


def test_the_5_percent_rule_on_numbers_made_by_hand():
    found = handmade({1: [2.0, 2.0, 2.0], 2: [2.3, 2.4, 2.5], 4: [2.3, 2.5, 9.0], 8: [2.0, 2.0, 2.0]})
    kept = [found.kept("sgd", "constant", delay) for delay in found.delays]
    assert kept == pytest.approx([1.0, 0.95, 0.9375, 1.0])
    assert found.tolerated("sgd", "constant") == 2, "8 does not count, because 4 lost more"
    assert found.tolerated_by_seed("sgd", "constant") == [8, 2, 1]
    assert "sgd: keeps 95% of its progress up to delay 2 (constant)." in repr(found)


def test_an_update_that_keeps_its_progress_at_every_delay_tolerates_the_largest_or_more():
    found = handmade({1: [2.0], 32: [1.9]})
    assert found.kept("sgd", "constant", 32) == pytest.approx(8.1 / 8)
    assert "up to delay 32 or more (constant)" in repr(found)


def test_a_run_that_diverged_lost_everything_and_is_marked():
    found = handmade({1: [2.0, 2.0, 2.0], 2: [2.0, 2.0, math.inf], 4: [math.inf, math.inf, 2.0]})
    assert [found.kept("sgd", "constant", delay) for delay in (2, 4)] == [1.0, 0.0]
    assert (found.tolerated("sgd", "constant"), found.tolerated_by_seed("sgd", "constant")) == (2, [2, 2, 1])
    [line] = [line for line in repr(found).splitlines() if line.startswith("sgd   ")]
    assert line.split()[1:] == ["0.1", "2", "100*", "div", "2", "(1–2)"]
    assert "* some runs diverged, div: most did" in repr(found)


def test_a_loss_above_the_start_keeps_nothing_and_without_progress_nothing_is_known():
    assert handmade({1: [2.0], 2: [1e9]}).kept("sgd", "constant", 2) == 0.0
    without = handmade({1: [11.0], 2: [2.0]})
    assert math.isnan(without.kept("sgd", "constant", 2))
    assert without.tolerated("sgd", "constant") is None
    assert "sgd: made no progress at delay 1." in repr(without)


def test_a_stepsize_that_is_too_large_for_the_delay_is_marked_as_diverged():
    problem = nw.problems.NoisyQuadratic(dimension=2, sigma=0.0)
    options = {"steps": 3_000, "delays": [1, 16], "patterns": ["constant"], "trials": 1, "seeds": 1}
    found = nw.tolerance(problem, {"sgd": nw.Sgd()}, start={"sgd": 1.5}, **options, progress=False)
    row = found.row("sgd", "constant", 16)
    assert (row.losses, row.num_diverged) == ((math.inf,), 1)
    assert found.tolerated("sgd", "constant") == 1


class Bounded:
    """x⁴/4 as far as gradients know, with a loss below 1 everywhere."""

    dimension = 1

    def initial(self):
        return np.array([2.0])

    def gradient(self, point, sample):
        with np.errstate(over="ignore"):
            return point**3

    def loss(self, point):
        return float(1 - 1 / (1 + min(abs(point[0]), 1e9) ** 2))


def test_a_run_whose_params_overflow_diverged_even_if_its_last_loss_is_finite():
    options = {"steps": 200, "delays": [1, 16], "patterns": ["constant"], "trials": 1, "seeds": 1}
    found = nw.tolerance(Bounded(), {"sgd": nw.Sgd()}, start={"sgd": 0.1}, **options, progress=False)
    assert found.row("sgd", "constant", 1).median < 0.1
    assert found.row("sgd", "constant", 16).losses == (math.inf,)


def test_every_update_gets_the_same_number_of_trials_and_delay_1_is_measured_once_for_all_patterns():
    told = []
    found = studied(patterns=None, delays=[4], tell=told.append)
    assert found.delays == (1, 4)
    assert [words.partition(":")[0] for words in told] == ["sgd", "adam"]
    for update in UPDATES:
        firsts = [found.row(update, pattern, 1) for pattern in PATTERNS]
        assert len({(row.stepsize, row.losses) for row in firsts}) == 1
    assert len(found.rows) == len(UPDATES) * len(PATTERNS) * 2


def test_the_runs_are_those_of_simulate():
    found = studied(rule=nw.Scheduled(nw.DelayAdaptive(1.0), nw.schedules.linear(30)), patterns=["uniform"])
    row = found.row("adam", "uniform", 4)
    rule = nw.Scheduled(nw.DelayAdaptive(row.stepsize), nw.schedules.linear(30))
    speeds = PATTERNS["uniform"](4, 30, 1)
    run = nw.simulate(PROBLEM, nw.AsynchronousSGD(rule), speeds, steps=30, update=nw.Adam(), seed=1)
    assert row.losses[1] == run.history.loss[-1]
    assert row.longest_delay >= run.trace.delay.max()


def test_retuning_never_makes_it_worse_and_keeps_the_other_rows():
    found = studied(delays=[1, 8], retune=True)
    for update in UPDATES:
        once, again = (found.row(update, "constant", 8, retuned=retuned) for retuned in (False, True))
        assert again.median <= once.median
        assert again.stepsize <= once.stepsize
    assert found.rows[0] == studied(delays=[1, 8]).rows[0]
    assert found.row("sgd", "constant", 1, retuned=True).losses == found.row("sgd", "constant", 1).losses


@pytest.fixture
def rows_by_hand(monkeypatch):
    """Replace the runs by losses that are a function of the stepsize and the delay. Returns what was asked for."""
    asked, losses = [], {}

    def row(self, name, size, pattern, delay):
        asked.append((delay, size))
        return ToleranceRow(name, pattern, delay, False, size, losses["of"](size, delay), float(delay), delay)

    monkeypatch.setattr(sys.modules["nowait.studies.tolerance"]._Setup, "row", row)
    return asked, losses


def test_a_stepsize_with_which_one_seed_diverged_is_not_chosen(rows_by_hand):
    asked, losses = rows_by_hand
    losses["of"] = lambda size, _: (0.01, 0.01, math.inf) if size > 1 else (0.02 / size,) * 3
    found = studied({"sgd": nw.Sgd()}, start={"sgd": 0.5}, trials=3, delays=[1], seeds=3)
    assert asked == [(1, 0.5), (1, 2.0), (1, 0.125)]
    assert found.rows[0].stepsize == 0.5


def test_retuning_begins_at_the_best_stepsize_of_the_delay_before(rows_by_hand):
    asked, losses = rows_by_hand
    losses["of"] = lambda size, delay: (0.001 + 0.001 * abs(math.log2(size * delay)),) * 2
    found = studied({"sgd": nw.Sgd()}, start={"sgd": 1.0}, trials=1, delays=[1, 4, 8], retune=True)
    assert asked == [
        (1, 1.0),
        *[(4, 2.0**-power) for power in range(4)],
        *[(8, size) for size in (1, 1 / 4, 1 / 8, 1 / 16)],
    ]
    assert [row.stepsize for row in found.rows if row.retuned] == [1.0, 1 / 4, 1 / 8]


def test_retuning_goes_below_stepsizes_that_diverge():
    problem = nw.problems.NoisyQuadratic(dimension=2, sigma=0.0)
    options = {"steps": 2_000, "delays": [1, 16], "patterns": ["constant"], "trials": 1, "seeds": 1, "retune": True}
    found = nw.tolerance(problem, {"sgd": nw.Sgd()}, start={"sgd": 1.5}, **options, progress=False)
    assert found.tolerated("sgd", "constant") == 1
    assert found.tolerated("sgd", "constant", retuned=True) == 16


def test_the_table_fits_80_columns():
    rule = nw.Scheduled(nw.DelayAdaptive(1.0), nw.schedules.linear(1_000))
    options = {"patterns": None, "delays": [1, 2, 4, 8, 16, 32, 64], "retune": True, "trials": 1, "rule": rule}
    assert max(map(len, repr(studied(steps=64, **options)).splitlines())) <= 80


def test_a_saved_study_is_read_again(tmp_path):
    found = studied()
    found.rows.append(dataclasses.replace(found.rows[0], pattern="straggler", losses=(math.inf, 1.0)))
    folder = found.save(tmp_path / "study")
    again = nw.Tolerance.load(folder)
    assert again == found
    table = list(csv.DictReader((folder / "tolerance.csv").read_text().splitlines()))
    assert len(table) == len(found.rows) * 2
    assert float(table[0]["loss"]) == found.rows[0].losses[0]
    assert (folder / "tolerance.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(FileNotFoundError, match="is not the folder of a tolerance study"):
        nw.Tolerance.load(tmp_path)


def test_the_figure_has_a_panel_per_pattern_and_a_line_per_update():
    found = studied(patterns=None, delays=[1, 2, 4])
    figure = nw.plots.tolerance(found)
    assert len(figure.axes) == 3
    for axes, pattern in zip(figure.axes, found.patterns, strict=True):
        assert axes.get_xscale() == "log"
        for line, update in zip(axes.lines[:2], found.updates, strict=True):
            assert line.get_label() == update
            assert line.get_xdata().tolist() == [1, 2, 4]
            assert line.get_ydata().tolist() == [found.row(update, pattern, delay).median for delay in (1, 2, 4)]
    with pytest.raises(TypeError, match=r"tolerance draws the result of nw.tolerance"):
        nw.plots.tolerance({})


def test_a_run_that_diverged_is_a_cross_at_the_top():
    [axes] = nw.plots.tolerance(handmade({1: [2.0], 2: [math.inf]})).axes
    assert axes.lines[0].get_marker() == "x"
    assert axes.lines[0].get_xdata().tolist() == [2]


@dataclasses.dataclass
class Pressing(nw.Update):
    """SGD that sends SIGINT at the start of one of its runs."""

    press_at: int
    starts: int = 0

    def start(self, params):
        self.starts += 1
        if self.starts == self.press_at:
            signal.raise_signal(signal.SIGINT)

    def apply(self, params, direction, stepsize, out):
        out[:] = params - stepsize * direction


def test_an_interrupt_keeps_the_rows_that_are_complete():
    options = {"delays": [1, 2, 4], "seeds": 2, "trials": 2, "start": {"first": 0.1, "second": 0.1}}
    whole = studied({"first": Pressing(0), "second": nw.Sgd()}, **options)
    with pytest.raises(nw.Interrupted) as caught:
        studied({"first": Pressing(7), "second": nw.Sgd()}, **options)
    found = caught.value.tolerance
    assert caught.value.signal == "SIGINT"
    assert found.rows == whole.rows[:2]
    assert found.interrupted
    assert found.measured("first", "constant") == [1, 2]
    assert "first: keeps 95% of its progress up to delay 2 or more (constant)." in repr(found)
    assert "Interrupted: what was not run is left out." in repr(found)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delays": []}, "delays is empty"),
        ({"delays": [0, 2]}, "a delay must be an integer of at least 1, got 0: a fresh gradient has delay 1"),
        ({"delays": [2, 2]}, "delays has one of them twice: 2, 2"),
        ({"delays": [2.5]}, "a delay must be an integer"),
        ({"delays": [1, 10**20]}, r"a delay must be below 2\*\*63"),
        ({"delays": [1, 10**15]}, "a delay must be at most the"),
        ({"patterns": ["sometimes"]}, "a pattern must be one of 'constant', 'uniform', 'straggler'"),
        ({"patterns": []}, "patterns must be some of"),
        ({"steps": 0}, "steps must be an integer of at least 1"),
        ({"trials": 0}, "trials must be an integer of at least 1"),
        ({"keep": 1.0}, "keep must be at least 0 and below 1"),
        ({"start": {"muon": 1.0}}, "start has a stepsize for 'muon', but the updates are sgd, adam"),
        ({"start": {"sgd": -1.0}}, "the start of sgd must be a finite number above 0"),
        ({"updates": {"muon": nw.Muon()}}, "muon is for matrices, but NoisyQuadratic has none"),
        ({"updates": {"lmo": nw.LMO()}}, "lmo is for matrices"),
    ],
)
def test_wrong_arguments_are_errors(options, words):
    with pytest.raises(ValueError, match=words):
        studied(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"updates": [nw.Sgd()]}, "updates must be named"),
        ({"updates": {}}, "updates must be named"),
        ({"updates": {"sgd": nw.Sgd}}, "the update 'sgd' must be an object, got the class Sgd"),
        ({"updates": {1: nw.Sgd()}}, "the name of an update must be"),
        ({"start": 5}, "start must be a dictionary of stepsizes by name"),
        ({"delays": "1,2"}, "delays must be a list"),
        ({"patterns": "constant"}, "patterns must be a list of names"),
    ],
)
def test_arguments_of_the_wrong_type_are_errors(options, words):
    with pytest.raises(TypeError, match=words):
        studied(**options)


class WithStatistics:
    """A quadratic whose last entry is a statistic: it moves by 1 in every step, whatever the stepsize is."""

    dimension, num_statistics = 3, 1

    def initial(self):
        return np.array([1.0, -2.0, 0.0])

    def gradient(self, point, sample):
        return np.array([point[0], point[1], point[2] + 1.0])

    def loss(self, point):
        return float(point[0] ** 2 + point[1] ** 2) / 2


def test_the_first_stepsize_follows_from_what_is_trained():
    found = nw.tolerance(WithStatistics(), {"sgd": nw.Sgd()}, steps=30, delays=[1], patterns=["constant"], trials=2)
    assert found.kept("sgd", "constant", delay=1) == 1.0
    assert found.rows[0].stepsize > 0.001


def test_muon_sees_the_matrix_of_softmax_regression():
    features = np.random.default_rng(0).normal(size=(60, 5))
    problem = nw.problems.SoftmaxRegression(features, features[:, :3].argmax(axis=1), batch_size=8)
    assert problem.layout["weight"].shape == (5, 3)
    updates = {"muon": nw.Muon(), "adam": nw.Adam()}
    found = nw.tolerance(problem, updates, steps=20, delays=[1, 2], patterns=["constant"], trials=2, seeds=1)
    assert found.row("muon", "constant", 1).median < found.start_loss
    assert found.row("muon", "constant", 1).losses != found.row("adam", "constant", 1).losses
