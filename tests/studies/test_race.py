"""Races: the table, the sentences, and the files."""

import dataclasses
import math
import types

import numpy as np
import pytest

import nowait as nw
from names import plain
from nowait.engines.progress import title_or
from nowait.recording import TraceRecorder
from nowait.studies import sources
from nowait.studies import tuner as tuners
from nowait.studies.entrants import (
    ADAPTIVE,
    AUTO,
    CONSTANT,
    FIRST_M,
    MINIBATCH,
    MINIBATCH_MOMENTUM,
    Settings,
    checked_entrants,
    paper_methods,
    usual_methods,
)
from nowait.studies.findings import RaceRow, findings, lower_bound, rows_of, rules_compared, why_not_as_predicted
from nowait.studies.race import folder_names
from nowait.studies.race_folder import save_race
from nowait.studies.race_setup import RaceSetup, unused_seeds
from nowait.studies.race_tuner import RaceTuner, cheapest_counts, recent_times
from nowait.studies.sources import Source, from_arrival_to_arrival
from nowait.studies.tuner import Tuner, best_of, steady_of
from nowait.studies.winner import Contest, lost_workers, who_won
from nowait.theory import SpeedupRange, relative_noise, speedup

PROBLEM = nw.problems.LeastSquares.random(samples=300, dimension=10, noise=0.01, batch_size=4, seed=0)
UNEQUAL = nw.speeds.Fixed([1.0, 1.0, 2.0, 15.0])


@pytest.fixture(scope="module")
def a_race():
    said = []
    options = {"engine": "simulate", "speeds": UNEQUAL, "gradients": 1_500, "seeds": [0, 1], "progress": False}
    found = nw.race(PROBLEM, paper_methods(), tell=said.append, tuning_sizes=7, **options)
    return found, said


def test_every_method_gets_the_same_time(a_race):
    found, _ = a_race
    assert list(found.runs) == [MINIBATCH, CONSTANT, ADAPTIVE]
    assert {len(runs) for runs in found.runs.values()} == {2}
    for row in found.rows:
        assert row.seconds == pytest.approx(found.seconds, rel=0.05)
    minibatch, constant, adaptive = found.rows
    assert minibatch.steps == pytest.approx(found.seconds / 15.0, abs=1)
    assert constant.steps == adaptive.steps == adaptive.gradients > 20 * minibatch.steps


def test_the_speedup_is_predicted_and_measured(a_race):
    found, _ = a_race
    minibatch, *others = found.rows
    assert (minibatch.predicted, minibatch.measured) == (None, None)
    for row in others:
        assert row.predicted == found.speedup.speedup
        assert row.measured == pytest.approx(row.predicted, rel=0.7)
        assert row.seconds_to_first < minibatch.seconds_to_first


NOISY = nw.problems.LeastSquares.random(samples=400, dimension=20, noise=1.0, batch_size=1, seed=0)


@pytest.fixture(scope="module")
def five():
    said = []
    speeds = nw.speeds.LogNormal([1.0, 1.5, 2.0, 3.0, 6.0, 12.0], sigma=0.2)
    options = {"engine": "simulate", "speeds": speeds, "gradients": 1_500, "progress": False}
    return nw.race(NOISY, tell=said.append, tuning_sizes=8, **options), said


def test_by_default_the_papers_pair_races_against_the_rivals_of_practice(five):
    found, _ = five
    assert list(found.runs) == [MINIBATCH, ADAPTIVE, MINIBATCH_MOMENTUM, FIRST_M, AUTO]
    kinds = [runs[0].config["method"]["type"] for runs in found.runs.values()]
    assert kinds == ["MinibatchSGD", "AsynchronousSGD", "MinibatchSGD", "MSynchronousSGD", "Auto"]
    settings = found.config["settings"]
    for name in (MINIBATCH_MOMENTUM, FIRST_M):
        momentum, update = settings[name]["momentum"], found.runs[name][0].config["update"]
        assert update == ({"type": "Nesterov", "beta": momentum} if momentum else {"type": "Sgd"})
    assert found.runs[FIRST_M][0].config["method"]["m"] == settings[FIRST_M]["m"]
    method = found.runs[AUTO][0].config["method"]
    assert settings[AUTO] == settings[MINIBATCH_MOMENTUM]
    assert (method["stepsize"]["gamma"], method["momentum"]) == tuple(settings[AUTO].values())


def test_every_method_gets_as_many_trials_and_auto_none(monkeypatch):
    trials, original = [], Tuner.sweep

    def sweep(tuner, make, sizes, *others, **options):
        trials.extend([type(make(1.0)).__name__, tuner.update] for _ in sizes)
        return original(tuner, make, sizes, *others, **options)

    monkeypatch.setattr(Tuner, "sweep", sweep)
    for sizes in (1, 2, 4, 7, 10):
        trials.clear()
        options = {"engine": "simulate", "speeds": nw.speeds.Fixed([1.0, 1.0, 2.0, 3.0, 4.0, 9.0]), "gradients": 60}
        found = nw.race(NOISY, tuning_sizes=sizes, progress=False, **options)
        kinds = [kind for kind, _ in trials]
        assert kinds == [*["MinibatchSGD"] * sizes, *["AsynchronousSGD"] * sizes, *["MinibatchSGD"] * sizes,
                         *["MSynchronousSGD"] * sizes]  # fmt: skip
        assert found.config["tuning"]["trials"] == sizes


@pytest.mark.parametrize(
    ("diverged", "steady"),
    [([], 1.6), ([3.2], 1.6), ([2.0], 1.0), ([3.2, 2.0, 1.6, 1.0, 0.8, 0.4], 0.4), ([3.2, 2.0, 1.6, 1.0, 0.8], 0.4)],
)
def test_stepsizes_for_real_workers_keep_away_from_those_that_diverged(diverged, steady):
    """The best is 1.6, and the larger ones are worse unless they diverge."""
    sizes = np.array([3.2, 2.0, 1.6, 1.0, 0.8, 0.4])
    losses = np.array([[4.0], [3.0], [1.0], [1.5], [2.0], [5.0]])
    gone = np.isin(sizes, diverged)[:, None]
    best = sizes[np.argmin(np.where(gone, np.inf, losses))]
    tried = types.SimpleNamespace(stepsizes=sizes, diverged=gone, decisive=losses, step=np.ones((6, 1)), best=best)
    assert steady_of(tried) == steady


SPREAD = nw.speeds.Fixed([1.0, 1.1, 1.2, 1.3, 2.0, 4.0, 8.0, 16.0])


def tuned_first_m(problem, unit, trials=13):
    tuner = Tuner(problem, SPREAD, unit=unit, seconds=100.0, seeds=(0,), sizes=trials)
    return RaceTuner(tuner, [2, 4, 5, 8]).tune(usual_methods()[FIRST_M])


def test_two_stepsizes_are_tried_first_then_m_then_the_momentum_then_stepsizes():
    tuned = tuned_first_m(PROBLEM, unit=1 / PROBLEM.constants().L)
    size = 0.5 / PROBLEM.constants().L
    tried = [(one.m, one.momentum, one.stepsize) for one in tuned.losses]
    assert tried[:2] == [(5, 0.9, size), (5, 0.9, size / 16)]
    assert tried[2:5] == [(2, 0.9, size), (4, 0.9, size), (8, 0.9, size)]
    assert tried[5:] == [(tuned.settings.m, 0.97, size), (tuned.settings.m, 0.0, size)]
    best = min(tuned.losses, key=tuned.losses.get)
    assert (tuned.settings.m, tuned.settings.momentum) == (best.m, best.momentum)
    assert best.stepsize in tuned.sweep.stepsizes
    assert (tuned.trials, len(tuned.sweep.stepsizes)) == (13, 13 - 7 + 1)
    assert tuned.settings.stepsize == tuned.sweep.best


def test_where_noise_limits_the_stepsize_m_and_momentum_are_compared_with_a_small_one():
    noisy = nw.problems.LeastSquares.random(samples=400, dimension=20, noise=5.0, batch_size=1, seed=0)
    unit = 1 / noisy.constants().L
    tuned = tuned_first_m(noisy, unit)
    assert [one.stepsize for one in tuned.losses] == [0.5 * unit, *[0.5 * unit / 16] * 6]
    assert tuned.sweep.stepsizes.max() <= 4 * unit / 16, "so is the grid"


def test_few_trials_try_one_stepsize_and_one_m_first():
    for trials in (1, 2, 3):
        tuned = tuned_first_m(PROBLEM, unit=0.1, trials=trials)
        assert next((one.m, one.momentum) for one in tuned.losses) == (5, 0.9)
        assert {one.m for one in tuned.losses} == {5}
        assert tuned.trials == trials


def test_the_values_of_m_are_the_cheapest_from_little_noise_to_much():
    seconds = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 50.0]
    assert cheapest_counts(Source.of_seconds(seconds)) == [1, 7], "the fastest worker, or all but the straggler's"
    assert cheapest_counts(Source.of_seconds([1.0])) == [1]


class Stalling(nw.speeds.Speeds):
    """Every second gradient of worker 1 never ends."""

    num_workers = 2

    def timing(self, seed):
        return lambda worker, job, start: (math.inf if worker and job % 2 else 1.0, start + 1.0)


def test_times_that_are_infinite_are_replaced_by_means():
    source = dataclasses.replace(Source.of_seconds([1.0, 3.0]), speeds=Stalling())
    np.testing.assert_array_equal(recent_times(source), np.repeat([[1.0], [3.0]], 8, axis=1))


def test_what_was_chosen_is_told(five):
    found, said = five
    (words,) = [words for words in said if words.startswith(f"{FIRST_M}: ")]
    settings = found.config["settings"][FIRST_M]
    assert f"of the momenta 0, 0.9, 0.97 the best is {settings['momentum']:g}, of the stepsizes " in words
    assert f"{AUTO}: with stepsize and momentum of {MINIBATCH_MOMENTUM}, without a trial." in said


def test_a_speedup_is_predicted_for_the_plain_pair_alone(five):
    found, _ = five
    assert [row.method for row in found.rows if row.predicted is not None] == [ADAPTIVE]
    momentum = {
        "first": lambda size: nw.MinibatchSGD(nw.Constant(size)),
        "second": lambda size: (nw.AsynchronousSGD(nw.Constant(size)), nw.Momentum(0.5)),
        "third": lambda size: nw.OrderedMomentum(size, beta=0.5),
        "fourth": lambda size: nw.Auto(size, momentum=0.5),
    }
    options = {"engine": "simulate", "speeds": UNEQUAL, "gradients": 300, "tuning_sizes": 1, "progress": False}
    assert [row.predicted for row in nw.race(PROBLEM, momentum, **options).rows] == [None] * 4


def test_a_race_with_momentum_is_loaded_as_it_was_saved(five, tmp_path):
    found, _ = five
    loaded = nw.Race.load(found.save(tmp_path / "race"))
    assert (loaded.rows, loaded.findings, loaded.config) == (found.rows, found.findings, found.config)


def test_a_function_of_stepsize_and_momentum_has_both_tuned():
    methods = {
        "own": lambda size, momentum: nw.OrderedMomentum(size, beta=momentum),
        "update": lambda size, beta: (nw.MinibatchSGD(size), nw.Momentum(beta)),
        "fixed": lambda size: (nw.MinibatchSGD(size), nw.Momentum(0.5)),
    }
    options = {"engine": "simulate", "speeds": UNEQUAL, "gradients": 300, "tuning_sizes": 6, "progress": False}
    found = nw.race(PROBLEM, methods, **options)
    settings = found.config["settings"]
    assert set(settings["fixed"]) == {"stepsize"}
    assert found.runs["fixed"][0].config["update"] == {"type": "Momentum", "beta": 0.5}
    assert found.runs["own"][0].config["method"]["beta"] == settings["own"]["momentum"]
    assert found.runs["update"][0].config["update"] == {"type": "Momentum", "beta": settings["update"]["momentum"]}


def test_an_auto_of_the_users_is_tuned_as_minibatches_with_its_momentum():
    options = {"engine": "simulate", "speeds": UNEQUAL, "gradients": 600, "tuning_sizes": 5, "progress": False}
    methods = {
        "minibatches": lambda size: (nw.MinibatchSGD(size), nw.Nesterov(0.9)),
        "mine": lambda size: nw.Auto(nw.Constant(size)),
    }
    found = nw.race(PROBLEM, methods, **options)
    settings = found.config["settings"]
    assert settings["mine"] == settings["minibatches"]
    np.testing.assert_array_equal(found.tunings["mine"].curves, found.tunings["minibatches"].curves)
    assert found.runs["mine"][0].config["method"]["type"] == "Auto"


@pytest.mark.parametrize(
    "methods",
    [None, {"mine": lambda size: (nw.MinibatchSGD(size), nw.Nesterov(0.9))}, {MINIBATCH_MOMENTUM: 0, AUTO: 0}],
    ids=["usual", "own", "auto"],
)
def test_an_update_for_all_is_refused_if_a_method_has_its_own(methods):
    methods = {name: usual_methods()[name] for name in methods} if methods and AUTO in methods else methods
    with pytest.raises(ValueError, match=r"update= is for methods without an update of their own, but .* has one"):
        nw.race(PROBLEM, methods, engine="simulate", speeds=UNEQUAL, update=nw.Momentum(0.5))


def test_auto_with_the_settings_of_another_method_needs_that_method():
    usual = usual_methods()
    for names in ([AUTO], [AUTO, MINIBATCH_MOMENTUM]):
        with pytest.raises(ValueError, match=r"'Auto'.*gets stepsize and momentum of 'Minibatch SGD, momentum'"):
            checked_entrants({name: usual[name] for name in names})
    assert checked_entrants({name: usual[name] for name in (MINIBATCH_MOMENTUM, AUTO)})[1].make(
        Settings(0.5, 0.9)
    ).method == nw.Auto(0.5, 0.9)


def test_auto_does_not_race_on_different_data():
    problem, said = nw.problems.NoisyQuadratic(dimension=4).split(4, zeta=1.0), []
    options = {"engine": "simulate", "speeds": UNEQUAL, "gradients": 100, "tuning_sizes": 1, "progress": False}
    found = nw.race(problem, tell=said.append, **options)
    assert list(found.runs) == [MINIBATCH, ADAPTIVE, MINIBATCH_MOMENTUM, FIRST_M]
    assert said[0].startswith("Auto does not race: every worker has data of its own")
    with pytest.raises(ValueError, match="Auto would leave out those of slow workers"):
        nw.race(problem, {"mine": nw.Auto(0.1)}, **options)


def contest(runs, minimum=0.0, settings=None, noise=None, tried=()):
    gain = speedup([1.0] * 4)
    return Contest(rows_of(runs, minimum, gain, noise), runs, minimum, gain, noise, settings or {}, tried)


def ending_at(method, losses, **stats):
    """Return a run with these losses after 0, 1, 2, ... seconds."""
    run = nw.simulate(PROBLEM, method, nw.speeds.Fixed([1.0] * 4), seconds=len(losses) - 1.0, evaluate_every=1)
    zeros = np.arange(len(losses), dtype=float)
    history = dataclasses.replace(run.history, loss=np.array(losses, float), time=zeros, step=zeros, gradients=zeros)
    return dataclasses.replace(run, history=history, stats=dataclasses.replace(run.stats, **stats))


def test_the_winner_has_the_lowest_loss_and_may_be_any_method():
    runs = {
        "Minibatch SGD": [ending_at(nw.MinibatchSGD(0.1), [8, 7, 6, 5, 4])],
        "asynchronous": [ending_at(nw.AsynchronousSGD(0.1), [8, 6, 4, 2, 2])],
        "first": [ending_at(nw.MSynchronousSGD(0.1, m=3), [8, 2, 1, 0.5, 0.25])],
    }
    settings = {"first": {"m": 3, "momentum": 0.97}, "asynchronous": {"stepsize": 0.1}}
    said = who_won(contest(runs, settings=settings, noise=0.1, tried=["first"]))
    assert said[:2] == [
        "first (m = 3 of 4, momentum 0.97) was fastest: it ended with the lowest loss, 0.25.",
        "Times to the final loss of each other method, divided by the winner's time to it: "
        "asynchronous 3 (without a trial of its own); Minibatch SGD 4.",
    ]
    assert said[2].startswith("It did not wait for slow workers: ")
    assert "There was little noise (σ²/(M·L·ε) = 0.1 where Minibatch SGD ended)" in said[2]
    assert "noise" not in who_won(contest(runs, noise=2.0))[2]


def test_times_are_compared_seed_by_seed():
    """With two seeds, half of the runs do not reach the median of their final losses."""
    runs = {
        "slow": [ending_at(nw.MinibatchSGD(0.1), [8, 7, 6, 5]), ending_at(nw.MinibatchSGD(0.1), [8, 7, 6, 4])],
        "fast": [ending_at(nw.MinibatchSGD(0.1), [8, 5, 2, 1]), ending_at(nw.MinibatchSGD(0.1), [8, 5, 3, 1])],
    }
    assert who_won(contest(runs))[1].endswith("divided by the winner's time to it: slow 2.25.")
    late = {
        "lucky": [ending_at(nw.MinibatchSGD(0.1), [8, 1, 6, 5])],
        "low": [ending_at(nw.MinibatchSGD(0.1), [8, 7, 6, 4])],
    }
    assert who_won(contest(late))[1].endswith("divided by the winner's time to it: lucky 0.333.")


def test_asynchronous_sgd_wins_by_its_gradients_where_noise_is_large():
    runs = {
        "Minibatch SGD": [ending_at(nw.MinibatchSGD(0.1), [8, 7, 6])],
        "asynchronous": [ending_at(nw.AsynchronousSGD(0.1), [8, 4, 2])],
    }
    (_, _, reason) = who_won(contest(runs, noise=3.0))
    assert reason.startswith("No worker waited: ")
    assert reason.endswith("There was much noise (σ²/(M·L·ε) = 3 where Minibatch SGD ended), so every gradient counts.")


def test_minibatches_win_on_equal_workers():
    runs = {
        "Minibatch SGD": [ending_at(nw.MinibatchSGD(0.1), [8, 4, 2])],
        "asynchronous": [ending_at(nw.AsynchronousSGD(0.1), [8, 6, 4])],
    }
    assert who_won(contest(runs))[2].startswith("The workers are nearly equally fast (s_max/HM = 1)")


def test_the_first_m_of_m_have_waited_for_all():
    runs = {
        "Minibatch SGD": [ending_at(nw.MinibatchSGD(0.1), [8, 6, 4])],
        "first": [ending_at(nw.MSynchronousSGD(0.1, m=4), [8, 4, 2])],
    }
    assert who_won(contest(runs))[2].startswith("The workers are nearly equally fast (s_max/HM = 1)")


def test_the_grid_of_stepsizes_fits_the_best_momentum():
    """Of ``OrderedMomentum`` the usual stepsize is proportional to 1 − β: the grid is not that of another β."""
    problem = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.01)
    tuner = Tuner(problem, SPREAD, unit=1.0, seconds=60.0, seeds=(0,), sizes=9)
    make = {"own": lambda size, momentum: nw.OrderedMomentum(size, beta=momentum)}
    tuned = RaceTuner(tuner, [8]).tune(checked_entrants(make)[0])
    usual = 0.5 / nw.OrderedMomentum(1.0, beta=tuned.settings.momentum).stepsize_divisor(8)
    assert len({one.momentum for one in tuned.losses}) == 3
    assert usual / 17 < min(tuned.sweep.stepsizes) < max(tuned.sweep.stepsizes) < 17 * usual


@pytest.mark.parametrize(
    "make", [lambda size, *, momentum: nw.Auto(size, momentum), lambda size, mom: nw.Auto(size, momentum=mom)]
)
def test_a_second_parameter_must_be_a_positional_momentum(make):
    with pytest.raises(TypeError, match="the second one must be positional, and called momentum or beta"):
        checked_entrants({"mine": make})


def test_of_methods_that_converged_the_first_one_wins():
    """Their final losses differ by rounding."""
    runs = {
        "late": [ending_at(nw.MinibatchSGD(0.1), [1, 0.5, 0.1, 1e-3, 1e-13])],
        "early": [ending_at(nw.AsynchronousSGD(0.1), [1, 0.5, 1e-7, 1e-12, 2e-13])],
    }
    assert who_won(contest(runs))[0] == (
        "early was fastest: after 2 s, before any other, its error was below 1e-06 of that at the start."
    )
    assert who_won(contest(runs, minimum=None))[0].startswith("late was fastest: it ended with the lowest loss")


def test_there_is_no_winner_among_methods_that_cannot_be_compared():
    good = [ending_at(nw.MinibatchSGD(0.1), [8, 4, 2])]
    for bad in (
        ending_at(nw.AsynchronousSGD(0.1), [8, 9, 9]),
        ending_at(nw.AsynchronousSGD(0.1), [8, 1, 1], interrupted=True),
        ending_at(nw.AsynchronousSGD(0.1), [8, 1, 1], diverged=True),
        ending_at(nw.AsynchronousSGD(0.1), [8, 1, 1], steps=0),
    ):
        assert who_won(contest({"good": good, "bad": [bad]})) == []


def test_lost_workers_are_told():
    run = a_run(nw.MinibatchSGD(0.1))
    lost = dataclasses.replace(run, stats=dataclasses.replace(run.stats, lost=2))
    assert lost_workers({"whole": [run], "torn": [lost, lost]}) == [
        "torn lost 4 gradients with workers that left or died: it had fewer workers for a while."
    ]


def row(**changes):
    usual = dict.fromkeys(RaceRow.__dataclass_fields__, 1.0)
    return RaceRow(
        **usual
        | {"method": "Minibatch SGD", "steps": 20.0, "gradients": 200.0, "seconds": 10.0, "seconds_to_first": 10.0}
        | changes
    )


def best(measured, gradients=2_000.0):
    method = {"method": "Asynchronous SGD", "gradients": gradients, "predicted": 10.0, "measured": measured}
    return row(**method, expected=SpeedupRange(7.0, 15.0, noise=0.0), seconds_to_first=10.0 / measured)


def test_a_speedup_as_predicted_needs_no_explanation():
    for measured in (7.0, 10.0, 15.0):
        assert why_not_as_predicted(row(), best(measured)) == []
    assert why_not_as_predicted(row(), row(predicted=None, expected=None, measured=2.0)) == []
    assert why_not_as_predicted(row(), row(predicted=2.0, measured=None)) == []


def test_a_baseline_with_few_steps_explains_another_speedup():
    (sentence,) = why_not_as_predicted(row(steps=3.0), best(4.0))
    assert sentence.startswith("The measured speedup is below the predicted range: Minibatch SGD made only 3 steps")


def test_so_do_workers_that_were_slower_in_the_race():
    (sentence,) = why_not_as_predicted(row(), best(4.0, gradients=800.0))
    assert "Asynchronous SGD had 4 times as many gradients per second as Minibatch SGD" in sentence


def test_and_a_method_that_needs_more_gradients_for_the_same_loss():
    (sentence,) = why_not_as_predicted(row(), best(5.0))
    assert sentence.endswith("for the same loss Asynchronous SGD took 400 gradients, Minibatch SGD 200.")


def test_a_speedup_above_the_range_may_come_from_times_that_vary():
    (sentence,) = why_not_as_predicted(row(), best(20.0))
    assert sentence == (
        "The measured speedup is above the predicted range: for the same loss Asynchronous SGD took 100 gradients, "
        "Minibatch SGD 200. If compute times vary, Minibatch SGD also waits longer than s_max in every round."
    )


def test_a_run_has_the_place_of_its_method_and_of_its_seed_as_its_title(monkeypatch):
    titles, made = [], RaceSetup.run

    def run(*arguments):
        titles.append(title_or("none"))
        return made(*arguments)

    monkeypatch.setattr(RaceSetup, "run", run)
    methods = {"one": nw.AsynchronousSGD(nw.Constant(0.1)), "two": nw.MinibatchSGD(nw.Constant(0.1))}
    options = {"engine": "simulate", "speeds": UNEQUAL, "gradients": 20, "progress": False}
    nw.race(PROBLEM, methods, seeds=2, **options)
    nw.race(PROBLEM, {"one": methods["one"]}, **options)
    assert titles == [
        "Race, 1 of 2: one, seed 1 of 2",
        "Race, 1 of 2: one, seed 2 of 2",
        "Race, 2 of 2: two, seed 1 of 2",
        "Race, 2 of 2: two, seed 2 of 2",
        "Race, 1 of 1: one",
    ]


def test_every_stage_is_told_with_grid_and_winner(a_race):
    found, said = a_race
    assert "4 workers, 1 to 15 s per gradient" in said[0]
    assert said[1] == found.tuned_on
    for words, (name, tuning) in zip(said[2:], found.tunings.items(), strict=True):
        assert words.startswith(f"{name}: of the stepsizes ")
        assert f"the best is {tuning.best:.3g}" in words


def test_the_findings_name_steps_speedup_and_gradients(a_race):
    found, _ = a_race
    winner, times, reason, first, second, regime, why, third = found.findings[:8]
    assert winner.startswith("Asynchronous SGD, delay-adaptive was fastest: it ended with the lowest loss, ")
    assert times.startswith("Times to the final loss of each other method, divided by the winner's time to it: ")
    assert reason.startswith("No worker waited: 1,501 gradients made a step each; Minibatch SGD used ")
    assert "of virtual time Minibatch SGD made" in first
    assert "times as fast (the workers' speeds predict" in second
    assert why.startswith("The measured speedup is below the predicted range: for the same loss Asynchronous SGD")
    assert regime.endswith(f"s_max/s_min = {found.speedup.ceiling:.3g} the most.")
    assert "After the same" in third


def test_the_noise_is_that_at_the_end_of_the_first_method(a_race):
    found, _ = a_race
    end, (_, lowest) = found.runs[MINIBATCH][0].params, PROBLEM.minimum()
    rows = [PROBLEM.gradient(end, sample) for sample in samples(2_000)]
    sigma = float(np.sqrt(((rows - np.mean(rows, axis=0)) ** 2).sum(axis=1).mean()))
    constants = nw.theory.Constants(L=PROBLEM.constants().L, sigma=sigma)
    assert found.noise == pytest.approx(relative_noise(constants, PROBLEM.loss(end) - lowest, workers=4), rel=0.3)


def untuned_race(stepsize, **options):
    methods = {"first": nw.MinibatchSGD(stepsize), "second": nw.AsynchronousSGD(stepsize)}
    return nw.race(PROBLEM, methods, engine="simulate", speeds=UNEQUAL, gradients=300, progress=False, **options)


def test_the_noise_is_that_at_the_last_iterate_whatever_the_output_rule_and_the_labels():
    plain, averaged = untuned_race(0.01), untuned_race(0.01, output=nw.UniformAverage(), labels={"noise": "high"})
    assert (averaged.runs["first"][0].params != averaged.runs["first"][0].last).any()
    assert averaged.noise == plain.noise > 0


def test_a_baseline_that_gets_worse_has_no_noise():
    found = untuned_race(100.0, labels={"noise": "high"})
    assert found.noise is None
    assert found.rows[1].expected.regime == "unknown noise"


def samples(count):
    sampler = nw.core.randomness.sampler(7)
    return [sampler.sample(0, job) for job in range(count)]


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (0.1, "is 0.1. With little noise s_max/HM = 7.75 is roughly the least speedup, and s_max/s_min = 10 the most."),
        (0.5, "With some noise the speedup is between 0.5 times s_max/HM = 7.75 and s_max/s_min = 10."),
        (2.0, "With much noise the speedup is 0.5 to 1.6 times s_max/HM = 7.75, at most s_max/s_min = 10."),
    ],
)
def test_the_regime_is_told(noise, words):
    gain = speedup([1.0, 1.0, 1.0, 10.0])
    runs = {"minibatch": [a_run(nw.MinibatchSGD(nw.Constant(0.1)))]}
    runs |= {"asynchronous": [a_run(nw.AsynchronousSGD(nw.Constant(0.1)))]}
    rows = rows_of(runs, 0.0, gain, noise)
    assert words in " ".join(findings(rows, runs, gain, "simulate"))


def test_a_race_whose_noise_is_unknown_has_no_regime(a_race):
    found, _ = a_race
    without = dataclasses.replace(found, config={**found.config, "noise": None})
    older = dataclasses.replace(found, config={key: found.config[key] for key in found.config if key != "noise"})
    for race in (without, older):
        assert race.rows[1].expected.regime == "unknown noise"
        assert "σ²/(M·L·ε)" not in " ".join(race.findings)


def rule_race(constant, adaptive, minimum=0.0):
    """Return the sentence on two rules whose runs end with these losses above the minimum."""
    problem = nw.problems.NoisyQuadratic(dimension=2)

    def ending_at(rule, error):
        run = nw.simulate(problem, nw.AsynchronousSGD(rule), nw.speeds.Fixed([1.0]), steps=2, progress=False)
        run.history.loss[-1] = error
        return run

    runs = {
        "other": [ending_at(nw.StepDecay(0.1, 1, 0.5), 9.0)],
        "constant": [ending_at(nw.Constant(0.1), error) for error in constant],
        "adaptive": [ending_at(nw.DelayAdaptive(0.1), error) for error in adaptive],
    }
    return rules_compared(runs, minimum)


def test_the_two_stepsize_rules_are_compared():
    assert rule_race([8.0, 6.0, 3.0], [2.0, 1.0, 1.0]) == [
        "The delay-adaptive stepsize ended with a smaller error than the constant one: 4 times smaller, 3 to 6 times "
        "over 3 seeds."
    ]
    assert rule_race([1.0], [2.5]) == [
        "The constant stepsize ended with a smaller error than the delay-adaptive one: 2.5 times smaller."
    ]
    neither = "Neither stepsize rule was clearly better: the error of the constant stepsize at the end is "
    assert rule_race([8.0, 2.0], [2.0, 4.0]) == [f"{neither}0.5 to 4 times that of the delay-adaptive one."]
    assert rule_race([1.05], [1.0]) == [f"{neither}1.05 times that of the delay-adaptive one."]


def test_rules_are_not_compared_by_runs_that_were_cut_short():
    problem, speeds = nw.problems.NoisyQuadratic(dimension=2), nw.speeds.Fixed([1.0])
    runs = {
        rule: [nw.simulate(problem, nw.AsynchronousSGD(rule(size)), speeds, steps=2, progress=False)]
        for rule, size in ((nw.Constant, 0.1), (nw.DelayAdaptive, 0.01))
    }
    assert len(rules_compared(runs, 0.0)) == 1
    (run,) = runs[nw.DelayAdaptive]
    runs[nw.DelayAdaptive] = [dataclasses.replace(run, stats=dataclasses.replace(run.stats, interrupted=True))]
    assert rules_compared(runs, 0.0) == []


def test_rules_are_not_compared_without_both_or_without_a_minimum():
    assert rule_race([8.0], []) == []
    assert rule_race([8.0], [2.0], minimum=None) == []
    assert rule_race([8.0], [2.0], minimum=2.0) == [], "an error of zero has no ratio"
    assert rule_race([math.inf], [2.0]) == []


def test_stepsizes_can_be_tuned_for_the_whole_time_with_several_seeds():
    options = {"tuning_sizes": 2, "tuning_seeds": 3, "tuning_share": 1.0}
    found = nw.race(PROBLEM, engine="simulate", speeds=UNEQUAL, gradients=300, seeds=[5, 6], **options)
    assert found.config["tuning"] == {
        "share_of_the_time": 1.0,
        "seconds": found.seconds,
        "seeds": [7, 8, 9],
        "trials": 2,
    }
    assert all(len(tuning.seeds) == 3 for tuning in found.tunings.values())
    assert "on 100% of the time of the race (117 s) and with seeds 7 to 9, which do not race:" in found.tuned_on


def test_everything_is_saved(a_race, tmp_path):
    found, _ = a_race
    folder = found.save(tmp_path / "race")
    names = {path.name for path in folder.iterdir()}
    assert {"report.html", "race.png", "race.svg", "config.json", "minibatch-sgd-seed-0"} <= names
    assert nw.load(folder / "minibatch-sgd-seed-1").stats.steps > 0


def test_methods_with_their_own_stepsize_are_not_tuned():
    own = {"mine": nw.AsynchronousSGD(nw.Constant(0.05)), "tuned": lambda size: nw.MinibatchSGD(nw.Constant(size))}
    found = nw.race(PROBLEM, own, engine="simulate", speeds=UNEQUAL, gradients=300)
    assert list(found.tunings) == ["tuned"]
    assert found.runs["mine"][0].config["method"]["stepsize"]["gamma"] == 0.05


def test_a_race_of_real_workers():
    speeds = nw.speeds.Fixed([0.002, 0.002, 0.02])
    found = nw.race(PROBLEM, workers=3, speeds=speeds, seconds=0.4, probe_seconds=0.3, progress=False)
    assert all(runs[0].stats.engine == "processes" for runs in found.runs.values())
    assert (found.speedup.seconds >= speeds.seconds).all(), "measured with the delays of the race"
    assert list(found.runs) == list(usual_methods())
    assert found.config["settings"][AUTO].items() == found.config["settings"][MINIBATCH_MOMENTUM].items()


def a_run(method, seconds=300.0, problem=PROBLEM):
    return nw.simulate(problem, method, nw.speeds.Fixed([1.0] * 4), seconds=seconds, seed=0)


def test_a_race_that_minibatch_sgd_wins_says_so():
    """Equal workers; the asynchronous stepsize is far too small."""
    runs = {
        "Minibatch SGD": [a_run(nw.MinibatchSGD(nw.Constant(2.0)))],
        "slow": [a_run(nw.AsynchronousSGD(nw.Constant(1e-4)))],
    }
    gain = nw.theory.speedup([1.0] * 4)
    rows = rows_of(runs, 0.0, gain)
    assert rows[1].seconds_to_first == math.inf
    said = findings(rows, runs, gain, "simulate")
    assert said[1].startswith("No other method reached the final loss of Minibatch SGD")
    assert "per gradient Minibatch SGD is ahead. Its gradients are all fresh" in said[2]
    assert rows[1].measured is None


def test_the_steps_of_a_method_that_was_cut_short_are_not_compared():
    names = ["Minibatch SGD", "fast"]
    made = [a_run(nw.MinibatchSGD(nw.Constant(0.1))), a_run(nw.AsynchronousSGD(nw.Constant(0.1)))]
    gain = nw.theory.speedup([1.0] * 4)
    whole = {name: [run] for name, run in zip(names, made, strict=True)}
    ended = dataclasses.replace(made[1], stats=dataclasses.replace(made[1].stats, interrupted=True))
    cut = whole | {"fast": [ended]}
    steps, *others = findings(rows_of(whole, 0.0, gain), whole, gain, "simulate")
    assert steps.startswith("In 300 s of virtual time Minibatch SGD made")
    assert findings(rows_of(cut, 0.0, gain), cut, gain, "simulate") == others


def test_a_method_that_diverges_is_a_result():
    runs = {
        "Minibatch SGD": [a_run(nw.MinibatchSGD(nw.Constant(2.0)))],
        "wild": [a_run(nw.AsynchronousSGD(nw.Constant(1e6)))],
    }
    gain = nw.theory.speedup([1.0] * 4)
    rows = rows_of(runs, 0.0, gain)
    assert rows[1].diverged
    assert findings(rows, runs, gain, "simulate") == [
        "Only Minibatch SGD ended below the loss it began with.",
        "wild diverged: its stepsize is too large for these workers.",
    ]


def test_a_first_method_that_went_astray_is_no_yardstick():
    runs = {
        "wild": [a_run(nw.AsynchronousSGD(nw.Constant(1e6)))],
        "Minibatch SGD": [a_run(nw.MinibatchSGD(nw.Constant(2.0)))],
    }
    gain = nw.theory.speedup([1.0] * 4)
    said = findings(rows_of(runs, 0.0, gain), runs, gain, "simulate")
    assert said[0] == "wild ended above the loss it began with, so there is nothing to compare the others with."


def test_a_method_that_ends_above_its_start_is_not_praised():
    late = a_run(nw.AsynchronousSGD(nw.Constant(0.2)))
    late.history.loss[-1] = 1e9
    runs = {"Minibatch SGD": [a_run(nw.MinibatchSGD(nw.Constant(2.0)))], "late": [late]}
    gain = nw.theory.speedup([1.0] * 4)
    said = findings(rows_of(runs, 0.0, gain), runs, gain, "simulate")
    assert (
        said[-1] == "late ended at a loss of 1e+09, above where it began: its stepsize is too large for these workers."
    )
    assert not any("times as fast" in sentence for sentence in said)


def test_a_first_method_without_a_step_is_no_yardstick():
    slow = nw.simulate(PROBLEM, nw.MinibatchSGD(nw.Constant(1.0)), nw.speeds.Fixed([1.0, 900.0]), seconds=50.0)
    runs = {"Minibatch SGD": [slow], "other": [a_run(nw.AsynchronousSGD(nw.Constant(0.1)))]}
    gain = nw.theory.speedup([1.0, 900.0])
    assert "made no step in the time of the race" in findings(rows_of(runs, 0.0, gain), runs, gain, "simulate")[0]


def test_the_formula_is_about_minibatch_sgd_and_what_applies_gradients_at_once():
    runs = {
        "first": [a_run(nw.AsynchronousSGD(nw.Constant(0.2)))],
        "second": [a_run(nw.AsynchronousSGD(nw.Constant(0.1)))],
    }
    assert [row.predicted for row in rows_of(runs, 0.0, nw.theory.speedup([1.0] * 4))] == [None, None]


def test_a_method_that_makes_no_step_is_not_tuned():
    tuner = Tuner(PROBLEM, nw.speeds.Fixed([1.0, 900.0]), unit=1.0, seconds=50.0, seeds=(0,), sizes=7)
    tuning = tuner.tune(paper_methods()[MINIBATCH])
    assert len(tuning.stepsizes) == 5, "the first grid alone"
    assert best_of(tuning) == tuning.stepsizes[len(tuning.stepsizes) // 2]


def test_every_run_has_a_folder_of_its_own():
    names = folder_names(["A", "a", "***", "x" * 300], [0])
    assert len(set(names.values())) == 4
    assert all(0 < len(name) < 100 for name in names.values())
    assert folder_names(["A"], [3, 4]) == {("A", 3): "a-seed-3", ("A", 4): "a-seed-4"}


class Negative:
    """Losses below zero, and no known minimum."""

    dimension = 1

    def initial(self):
        return np.ones(1)

    def gradient(self, point, sample):
        return point + 0.01 * sample.normals(1)

    def loss(self, point):
        return float(0.5 * point @ point - 100)


def test_an_unknown_minimum_is_not_zero(tmp_path):
    found = nw.race(Negative(), engine="simulate", speeds=UNEQUAL, gradients=300, folder=tmp_path / "race")
    assert found.minimum is None
    assert all(math.isnan(row.error) for row in found.rows)
    assert found.shown_from < -100
    assert found.problem == "Negative"
    assert (tmp_path / "race" / "report.html").exists()


def test_an_interrupted_race_keeps_what_there_is(tmp_path):
    calls = []

    def interrupting(size):
        calls.append(size)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return nw.AsynchronousSGD(nw.Constant(size))

    methods = {"first": nw.MinibatchSGD(nw.Constant(0.5)), "second": interrupting}
    options = {"seeds": [0, 1, 2], "tuning_sizes": 1, "folder": tmp_path / "race"}
    with pytest.raises(nw.Interrupted) as caught:
        nw.race(PROBLEM, methods, engine="simulate", speeds=UNEQUAL, gradients=300, **options)
    found = caught.value.race
    assert found.interrupted
    assert nw.Race.load(tmp_path / "race").interrupted
    assert found.findings[0] == "Interrupted: not every method had its time."
    assert sorted(path.name for path in (tmp_path / "race").glob("first*")) == [
        f"first-seed-{seed}" for seed in range(3)
    ]
    assert (tmp_path / "race" / "report.html").exists()


def test_the_grid_moves_to_where_the_best_stepsize_is():
    unit = 1 / PROBLEM.constants().L
    tuner = Tuner(PROBLEM, UNEQUAL, unit, seconds=300.0, seeds=(0,), sizes=13)
    tuning = tuner.tune(lambda size: nw.MinibatchSGD(size / 100))
    assert 0 < tuning.best_place < len(tuning.stepsizes) - 1
    assert tuning.best == pytest.approx(100 * unit, rel=0.9)


@pytest.mark.parametrize("sizes", [1, 2, 3, 4, 5, 6, 7, 13, 30])
@pytest.mark.parametrize("factor", [1.0, 1e-3, 1e3])
def test_just_as_many_stepsizes_are_tried_as_were_asked_for(sizes, factor, caplog):
    tuner = Tuner(PROBLEM, UNEQUAL, factor / PROBLEM.constants().L, seconds=30.0, seeds=(0,), sizes=sizes)
    tuning = tuner.tune(paper_methods()[CONSTANT])
    assert len(set(tuning.stepsizes.tolist())) == sizes
    assert tuning.stepsizes.tolist() == sorted(tuning.stepsizes, reverse=True)


def test_stepsizes_are_tuned_for_the_workers_that_take_part():
    """Gradients of two workers are half as old as those of four, and the others never deliver any."""
    tuner = Tuner(PROBLEM, nw.speeds.Fixed([1.0, 2.0, 3.0, 4.0]), unit=1.0, seconds=30.0, seeds=(0, 1), sizes=1)
    everybody = tuner.tune(paper_methods()[CONSTANT])
    two = tuner.tune(paper_methods()[CONSTANT], workers=(0, 3))
    assert (everybody.stepsizes.tolist(), two.stepsizes.tolist()) == ([0.5 / 4], [0.5 / 2])
    assert two.seeds.tolist() == [0, 1]
    assert two.gradients[0, 0].max() == 30 + 7, "one a second, and one every four seconds"


def test_a_worker_that_delivered_nothing_in_the_probe_is_reported(monkeypatch):
    trace = nw.simulate(PROBLEM, nw.AsynchronousSGD(0.1), nw.speeds.Fixed([1.0, 900.0]), seconds=20.0).trace
    monkeypatch.setattr(Source, "of_probe", lambda *_, **__: Source.of_trace(trace))
    monkeypatch.setattr(RaceSetup, "run", lambda *_: a_run(nw.AsynchronousSGD(0.1)))
    said = []
    nw.race(PROBLEM, {"one": nw.AsynchronousSGD(0.1)}, workers=2, gradients=100, tell=said.append)
    assert any(words.startswith("Note: ") and "1 delivered nothing" in words for words in said)
    assert Source.of_trace(trace).silent == 1
    assert Source.of_seconds([1.0, 2.0]).silent == 0


def probed(times_of_arrivals, compute_seconds):
    """Return the trace of a probe: for every worker, when its gradients arrived."""
    recorder = TraceRecorder(list(range(len(times_of_arrivals))))
    trace = recorder.trace(seconds=max(map(max, times_of_arrivals)), last_norm=0.0)
    pairs = sorted((time, worker) for worker, times in enumerate(times_of_arrivals) for time in times)
    arrivals = np.zeros(len(pairs), trace.arrivals.dtype)
    arrivals["time"], arrivals["worker"] = zip(*pairs, strict=True)
    arrivals["compute_seconds"] = compute_seconds
    return dataclasses.replace(trace, source=arrivals, num_arrivals=-1)


def test_a_probe_counts_the_time_of_the_server():
    """Gradients of 1 µs arrive every 100 µs and every 200 µs: that is what a race with these workers will see."""
    trace = probed([np.arange(1, 201) * 1e-4, np.arange(1, 101) * 2e-4], compute_seconds=1e-6)
    source = Source.of_trace(from_arrival_to_arrival(trace))
    assert source.seconds == pytest.approx([1e-4, 2e-4], rel=0.02)
    simulated = nw.simulate(PROBLEM, nw.AsynchronousSGD(0.1), source.speeds, seconds=0.1, progress=False)
    assert simulated.stats.gradients / 0.1 == pytest.approx(source.rate, rel=0.02)
    assert source.rate == pytest.approx(15_000, rel=0.02)


def test_a_race_of_real_workers_uses_it(monkeypatch):
    trace = probed([np.arange(1, 201) * 1e-4, np.arange(1, 101) * 2e-4], compute_seconds=1e-6)
    run = dataclasses.replace(a_run(nw.AsynchronousSGD(0.1), seconds=3.0), trace=trace)
    monkeypatch.setattr(sources, "_probe", lambda *_, **__: run)
    source = Source.of_probe(PROBLEM, 2, 1.0)
    assert source.seconds == pytest.approx([1e-4, 2e-4], rel=0.02)


def test_the_findings_say_when_the_best_stepsize_is_at_the_end_of_its_grid(a_race):
    found, _ = a_race
    assert not any("of the grid" in words for words in found.findings)
    far_too_small = {"tiny": lambda size: nw.MinibatchSGD(nw.Constant(1e-6 * size))}
    narrow = nw.race(
        PROBLEM, far_too_small, engine="simulate", speeds=UNEQUAL, gradients=300, tuning_sizes=2, progress=False
    )
    (words,) = [words for words in narrow.findings if "of the grid" in words]
    assert words.startswith("tiny may do better than here: the best stepsize, ")
    assert words.endswith("is the largest of the grid: a wider grid may do better. "
        "Raise tuning_sizes (--thorough) for more trials.")  # fmt: skip


def test_a_folder_that_cannot_be_written_is_refused_before_the_race(tmp_path, monkeypatch):
    monkeypatch.setattr(Source, "of_probe", lambda *_, **__: pytest.fail("it probes before it looks at the folder"))
    for name in (folder_names([MINIBATCH], [0])[MINIBATCH, 0], "tunings"):
        (tmp_path / name / name / "file").mkdir(parents=True)
        with pytest.raises(FileExistsError, match=f"already has '{name}', and nothing is overwritten: choose another"):
            nw.race(PROBLEM, workers=2, folder=tmp_path / name)
    (tmp_path / "file").touch()
    for folder in ("file", "file/below"):
        with pytest.raises(NotADirectoryError, match="file is not a folder that can be written to"):
            nw.race(PROBLEM, workers=2, folder=tmp_path / folder)
    with pytest.raises(TypeError):
        nw.race(PROBLEM, workers=2, folder=3)


def test_wrong_callbacks_are_refused_before_the_race(monkeypatch):
    monkeypatch.setattr(Source, "of_probe", lambda *_, **__: pytest.fail("it probes before it looks at log"))
    with pytest.raises(TypeError, match="log must be a function, such as lambda name: "):
        nw.race(PROBLEM, workers=2, log=[])
    with pytest.raises(TypeError, match=r"a callback is a nowait.Callback object or a function of control, got 3"):
        nw.race(PROBLEM, workers=2, log=lambda name: [3])


def test_log_is_called_once_for_every_run():
    names = []
    options = {"engine": "simulate", "speeds": UNEQUAL, "gradients": 20, "progress": False}
    nw.race(PROBLEM, {"one": nw.AsynchronousSGD(0.1)}, seeds=2, log=lambda name: names.append(name) or [], **options)
    assert names == ["one-seed-0", "one-seed-1"]


def test_one_or_two_stepsizes_are_near_the_unit():
    for sizes, tried in ((1, [0.5]), (2, [2.0, 1.0])):
        found = nw.race(
            PROBLEM,
            {"one": lambda size: nw.MinibatchSGD(nw.Constant(size))},
            engine="simulate",
            speeds=UNEQUAL,
            gradients=300,
            tuning_sizes=sizes,
        )
        assert (found.tunings["one"].stepsizes * PROBLEM.constants().L).tolist() == pytest.approx(tried)


def test_the_seed_of_the_tuning_does_not_race():
    assert unused_seeds([0, 1, 2], 1) == (3,)
    assert unused_seeds([5, 6], 3) == (7, 8, 9)
    assert unused_seeds([2**63 - 2, 0, 2], 1) == (2**63 - 1,)
    assert unused_seeds([2**63 - 2, 0, 2], 2) == (1, 3)
    seeds_of_sweeps = []
    original = tuners.sweep

    def sweep(*arguments, **options):
        seeds_of_sweeps.append(options["seeds"])
        return original(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nowait.studies.tuner.sweep", sweep)
        found = nw.race(PROBLEM, engine="simulate", speeds=UNEQUAL, gradients=300, seeds=[5, 6], tuning_sizes=2)
    assert {seed for seeds in seeds_of_sweeps for seed in seeds} == {7}
    assert found.config["tuning"] == {
        "share_of_the_time": 0.5,
        "seconds": found.seconds / 2,
        "seeds": [7],
        "trials": 2,
    }
    assert found.findings[-1] == found.tuned_on
    assert "with 2 trials each, on 50% of the time of the race" in found.tuned_on
    assert "with seed 7, which does not race: stepsizes, and momentum and m" in found.tuned_on


def test_update_and_output_are_those_of_all_runs_and_of_the_tuning():
    found = nw.race(
        PROBLEM,
        {"one": lambda size: nw.AsynchronousSGD(nw.Constant(size))},
        engine="simulate",
        speeds=UNEQUAL,
        gradients=300,
        seeds=[0, 1],
        update=nw.Momentum(0.5),
        output=nw.UniformAverage(),
        tuning_sizes=3,
    )
    for run in found.runs["one"]:
        assert (run.config["update"]["type"], run.config["output"]["type"]) == ("Momentum", "UniformAverage")
    assert found.answers["one"] == [PROBLEM.loss(run.params) for run in found.runs["one"]]
    assert found.rows[0].answer == pytest.approx(np.median(found.answers["one"]))
    tuning = found.tunings["one"]
    assert tuning.answers is not None
    assert tuning.best_place == int(np.argmin(tuning.answers[:, 0]))


def test_a_race_is_loaded_as_it_was_saved(a_race, tmp_path):
    found, _ = a_race
    loaded = nw.Race.load(save_race(found, tmp_path / "race"))
    assert loaded.rows == found.rows
    assert loaded.findings == found.findings
    assert (loaded.config, loaded.minimum, loaded.problem) == (found.config, found.minimum, found.problem)
    for name, tuning in found.tunings.items():
        np.testing.assert_array_equal(loaded.tunings[name].curves, tuning.curves)
        assert loaded.tunings[name].best == tuning.best
    again = save_race(loaded, tmp_path / "copy")
    assert nw.Race.load(again).rows == found.rows


def test_a_damaged_race_is_refused_in_a_sentence(a_race, tmp_path):
    found, _ = a_race
    path = save_race(found, tmp_path / "race") / "race.json"
    whole = path.read_bytes()
    for place in range(0, len(whole) - 3, len(whole) // 40):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(
            ValueError, match=r"race\.json is damaged: (its checksum differs|it cannot be read|it has no checksum)"
        ):
            nw.Race.load(path.parent)
        path.write_bytes(whole[:place])
        with pytest.raises(ValueError, match=r"race\.json is damaged"):
            nw.Race.load(path.parent)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"is not the folder of a race: it has no race\.json"):
        nw.Race.load(path.parent)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "odd"}, "engine must be one of processes, simulate, ray, got 'odd'"),
        ({"engine": "simulate"}, "a simulated race needs speeds="),
        ({"methods": {}}, "methods must be named"),
        ({"methods": {"a": 3}}, "method must be a method or a function"),
        ({"methods": {"a": lambda size: 3}}, "must be a nowait Method"),
        (
            {"methods": {"a": lambda size, rounds: 3}},
            r"methods\['a'\] must be a function of the stepsize, or of .* rounds",
        ),
        ({"methods": {"a": lambda size: (nw.MinibatchSGD(size), 3)}}, "the update of .* must be a nowait Update"),
        ({"seeds": []}, "seeds is empty"),
        ({"tuning_sizes": 0}, "tuning_sizes must be an integer of at least 1, got 0"),
        ({"tuning_seeds": 0}, "tuning_seeds must be an integer of at least 1, got 0"),
        ({"tuning_share": 0.0}, "tuning_share must be a finite number above 0"),
        ({"tuning_share": 1.5}, "tuning_share must be at most 1"),
        ({"workers": 3, "slowdown": {3: 2.0}}, "slowdown names worker 3, but the workers are 0 to 2"),
        ({"speeds": UNEQUAL, "slowdown": {9: 2.0}}, "slowdown names worker 9, but the workers are 0 to 3"),
        ({"engine": "simulate", "speeds": UNEQUAL, "slowdown": {0: 2.0}}, "slowdown= is for real workers"),
        ({"update": 3}, "update must be a nowait Update"),
        ({"output": nw.UniformAverage}, "output must be an object, got the class UniformAverage"),
        ({"engine": "simulate", "speeds": UNEQUAL, "seconds": 1.0, "gradients": 3}, "seconds= or gradients=, not both"),
    ],
    ids=plain,
)
def test_wrong_races_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        nw.race(PROBLEM, **options)


def test_a_race_is_compared_with_the_lower_bound_for_all_methods(a_race):
    found, _ = a_race
    first, second, _ = found.rows
    constants = nw.theory.Constants(L=1.0, sigma=0.0, Delta=4.0)
    times = [1.0, 100.0]
    accuracy = (
        second.seconds_to_first / 2
    )  # of ‖∇F‖², so that the bound, LΔ/ε·(1 s), is a little below the measured time
    error = 4.0 / accuracy / 2
    rows = [dataclasses.replace(first, error=error), second]
    (sentence,) = lower_bound(rows, constants, nw.theory.speedup(times))
    assert f"at least c·{accuracy:.3g} s for this loss, with a constant c that is not known" in sentence
    assert sentence.endswith(f"{second.method} took {second.seconds_to_first:.3g} s.")
    assert (
        lower_bound([dataclasses.replace(first, error=error / 100), second], constants, nw.theory.speedup(times)) == []
    )
    assert lower_bound([dataclasses.replace(first, error=math.nan)], constants, nw.theory.speedup(times)) == []
    assert lower_bound(rows, nw.theory.Constants(L=1.0), nw.theory.speedup(times)) == []


def test_the_estimated_constants_of_the_problem_are_part_of_a_race(a_race):
    found, _ = a_race
    assert {"L", "sigma", "Delta"} <= set(found.config["constants"])
