"""Speeds of workers: the paper's Section 1.2 and its two tables."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nowait as nw
from nowait.theory import Constants, Rate, malenia_time, relative_noise, rennala_time, speedup, table_1, table_2

SECONDS = st.lists(st.floats(0.01, 1e3), min_size=1, max_size=12)
CONSTANTS = Constants(L=1.0, mu=0.1, sigma=0.5, B=2.0, Delta=1.0, G=1.0, zeta=0.0)


def test_the_numbers_of_table_2():
    gain = speedup([1, 2, 4, 40])
    assert gain.rate == pytest.approx(1 + 1 / 2 + 1 / 4 + 1 / 40)
    assert gain.harmonic_mean == pytest.approx(4 / gain.rate)
    assert gain.max_delay == pytest.approx(40 + 20 + 10 + 1)
    assert gain.speedup == pytest.approx(71 / 4)
    assert gain.delays.tolist() == pytest.approx([1.775, 3.55, 7.1, 71])
    assert gain.async_steps(80) == 80 + 40 + 20 + 2
    assert gain.minibatch_steps(80) == 2
    assert (gain.async_steps(79.99), gain.minibatch_steps(79.99)) == (79 + 39 + 19 + 1, 1)


def test_the_range_of_speedups_by_noise():
    gain = speedup([1, 1, 1, 10])
    assert gain.ceiling == 10
    little, some, much, unknown = (gain.expected(noise) for noise in (0.3, 0.5, 1.0, None))
    assert [one.regime for one in (little, some, much, unknown)] == [
        "little noise",
        "some noise",
        "much noise",
        "unknown noise",
    ]
    assert (little.low, little.high) == pytest.approx((0.7 * 7.75, 10))
    assert (some.low, some.high) == (unknown.low, unknown.high) == pytest.approx((7.75 / 2, 10))
    assert (much.low, much.high) == pytest.approx((7.75 / 2, 10)), "never above the ceiling"
    assert gain.speedup in little
    assert 11 not in little
    wide = speedup([1, 8, 8, 8])
    assert wide.expected(2.0).high == pytest.approx(1.6 * wide.speedup)
    with pytest.raises(ValueError, match="noise"):
        gain.expected(-1.0)


@pytest.mark.parametrize("noise", [0.0, 10.0])
def test_measured_gains_are_in_the_range(noise):
    """Time of minibatch SGD to a target over that of asynchronous SGD, both with the best of several stepsizes."""
    seconds, target = [1.0, 1.5, 3.0, 4.0, 8.0, 20.0], 1e-4
    problem = nw.problems.NoisyQuadratic(dimension=20, L=1.0, mu=0.05, sigma=math.sqrt(noise * 6 * target))
    rate = speedup(seconds).rate

    def fastest(make, sizes, gradients, every):
        swept = nw.sweep(
            problem,
            make,
            nw.speeds.Fixed(seconds),
            stepsizes=sizes,
            seeds=3,
            seconds=gradients / rate,
            evaluate_every=every,
            progress=False,
        )
        below = np.where(np.nan_to_num(swept.curves, nan=np.inf) <= target, swept.time, np.inf)
        return below.min(axis=2).mean(axis=1).min()

    minibatch = fastest(lambda s: nw.MinibatchSGD(nw.Constant(s)), 1.8 * 2.0 ** np.arange(-6, 1), 40_000, 1)
    running = fastest(lambda s: nw.AsynchronousSGD(nw.DelayAdaptive(s)), 1.8 * 2.0 ** np.arange(-8, 1), 12_000, 6)
    assert minibatch / running in speedup(seconds).expected(noise)


def test_relative_noise():
    assert relative_noise(Constants(L=2.0, sigma=3.0), 0.5, workers=9) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="sigma"):
        relative_noise(Constants(L=2.0), 0.5, workers=9)
    with pytest.raises(ValueError, match="accuracy"):
        relative_noise(Constants(L=2.0, sigma=1.0), 0.0, workers=9)


def test_counts_are_not_spoilt_by_rounding():
    assert speedup([0.1] * 3).async_steps(0.3) == 9


@given(SECONDS, st.floats(0, 1e4))
def test_asynchronous_sgd_makes_at_least_m_times_the_steps(seconds, budget):
    gain = speedup(seconds)
    assert gain.async_steps(budget) >= gain.workers * gain.minibatch_steps(budget)
    assert gain.speedup >= 1 - 1e-12


@given(SECONDS, st.floats(0.01, 1e3))
def test_a_worker_is_worth_adding_exactly_if_m_over_k_falls(seconds, new):
    """Erratum E9: the paper prints one direction of the equivalence."""
    before, after = speedup(seconds), speedup([*seconds, new])
    ratio = (after.workers / after.rate) / (before.workers / before.rate)
    if abs(ratio - 1) > 1e-9:
        assert before.worth_adding(new) == (ratio < 1)


@given(SECONDS)
def test_a_worker_is_worth_removing_exactly_if_m_over_k_falls_without_it(seconds):
    gain = speedup(seconds)
    for worker in range(gain.workers if gain.workers > 1 else 0):
        others = speedup([s for number, s in enumerate(seconds) if number != worker])
        ratio = others.harmonic_mean / gain.harmonic_mean
        if abs(ratio - 1) > 1e-9:
            assert (worker in gain.worth_removing) == (ratio < 1)


@pytest.mark.parametrize("setting", ["convex", "strongly-convex", "nonconvex", "convex-lipschitz"])
def test_the_best_subset_is_the_best_of_all_subsets(setting):
    seconds = [3.0, 1.0, 30.0, 1.5, 4.0]
    gain, rate = speedup(seconds), Rate.of(setting, CONSTANTS)

    def time(workers):
        return rate.steps_to(0.01, len(workers)) / sum(1 / seconds[worker] for worker in workers)

    subsets = [some for size in range(1, 6) for some in itertools.combinations(range(5), size)]
    assert time(gain.best_subset(setting, CONSTANTS, 0.01)) == pytest.approx(min(map(time, subsets)))


def test_much_noise_makes_slow_workers_worth_keeping():
    gain = speedup([1.0, 1.0, 1.0, 5.0])
    quiet, noisy = (Constants(L=1.0, Delta=1.0, sigma=sigma) for sigma in (0.0, 100.0))
    assert gain.best_subset("nonconvex", quiet, 0.1) == [0, 1, 2]
    assert gain.best_subset("nonconvex", noisy, 0.1) == [0, 1, 2, 3]


@given(st.sampled_from(["convex", "strongly-convex", "nonconvex", "nonconvex-lipschitz"]), st.floats(1e-6, 1e-1))
def test_steps_to_an_accuracy_are_where_the_rate_is_that_accurate(setting, accuracy):
    rate = Rate.of(setting, CONSTANTS)
    steps = rate.steps_to(accuracy, width=7)
    assert rate.optimisation(steps, 7) + rate.noise(steps) == pytest.approx(accuracy, rel=1e-6) or steps == 1


def test_times_without_noise_are_in_the_ratio_of_the_speedup():
    gain, quiet = speedup([1.0, 1.0, 1.0, 10.0]), Constants(L=1.0, sigma=0.0, B=1.0, Delta=1.0)
    times = gain.times("convex", quiet, 1e-3)
    minibatch, old, new = times.values()
    assert minibatch / new == pytest.approx(gain.speedup)
    assert minibatch == pytest.approx(old), "by the longest delay there is no speedup: Table 2"


def test_optimal_times_are_never_above_the_others():
    gain = speedup([1.0, 2.0, 3.0, 50.0])
    times = gain.times("nonconvex", CONSTANTS, 1e-3)
    assert times["Rennala SGD"] == times["Ringmaster ASGD"] <= min(times.values())
    assert times["Asynchronous SGD, delay-adaptive, best subset"] <= times["Asynchronous SGD, delay-adaptive"]


def test_the_formulas_of_rennala_and_malenia():
    seconds, constants = [4.0, 1.0, 2.0], Constants(L=2.0, sigma=3.0, Delta=0.5)
    first, noise = 2.0 * 0.5 / 0.1, 9.0 * 2.0 * 0.5 / 0.01
    by_hand = min(m / sum(1 / s for s in sorted(seconds)[:m]) * (first + noise / m) for m in (1, 2, 3))
    assert rennala_time(seconds, constants, 0.1) == pytest.approx(by_hand)
    assert malenia_time(seconds, constants, 0.1) == pytest.approx(4.0 * first + 7 / 3 * noise / 3)


def test_different_data_keep_asynchronous_sgd_away_from_small_errors():
    gain, apart = speedup([1.0, 2.0]), Constants(L=1.0, sigma=0.1, Delta=1.0, zeta=0.5)
    times = gain.times("heterogeneous", apart, 0.1)
    assert times["Asynchronous SGD, delay-adaptive"] == math.inf
    assert math.isfinite(times["Minibatch SGD"])
    assert math.isfinite(times["Malenia SGD"])


def test_table_1_leaves_open_what_is_not_known():
    rows = table_1(Constants(L=1.0, sigma=1.0, B=1.0), workers=4, steps=1_000, max_delay=31)
    assert rows[0].convex == rows[2].convex < rows[1].convex
    assert all(math.isnan(row.strongly_convex) and math.isnan(row.nonconvex) for row in rows)


def test_table_2_needs_time_for_a_step():
    with pytest.raises(ValueError, match=r"the slowest worker \(10 s per gradient\) computes no gradient"):
        table_2([1, 10], budget_seconds=9)


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        ([], "seconds is empty"),
        ([1, 0], r"seconds\[1\] must be a finite number above 0, got 0"),
        ([1, math.nan], r"seconds\[1\] must be a finite number"),
        (3.0, "seconds must be a list of numbers, one for each worker"),
        ("1,2", "seconds must be a list of numbers"),
    ],
    ids=str,
)
def test_wrong_seconds_are_refused(seconds, message):
    with pytest.raises((ValueError, TypeError), match=message):
        speedup(seconds)


def test_the_simulated_speedup_is_the_predicted_one():
    """The speedup without noise, in the time to a target: it is close to the formula for the optimisation terms."""
    seconds = [1.0, 1.0, 1.0, 1.0, 40.0]
    problem = nw.problems.NoisyQuadratic(dimension=5, L=1.0, mu=0.05)
    speeds = nw.speeds.Fixed(seconds)
    asynchronous = nw.AsynchronousSGD(nw.DelayAdaptive(1 / 5))
    minibatch = nw.MinibatchSGD(nw.Constant(1.0))
    times = [
        nw.simulate(problem, method, speeds, seconds=5_000, target_loss=1e-4, evaluate_every=1).stats.seconds
        for method in (minibatch, asynchronous)
    ]
    assert times[0] / times[1] == pytest.approx(speedup(seconds).speedup, rel=0.3)


def test_array_seconds_are_taken():
    assert speedup(np.array([1.0, 3.0])).workers == 2


def test_minibatch_sgd_needs_no_lipschitz_constant():
    gain = speedup([1.0, 2.0])
    plain, lipschitz = (gain.times(setting, CONSTANTS, 1e-3) for setting in ("nonconvex", "nonconvex-lipschitz"))
    assert plain["Minibatch SGD"] == lipschitz["Minibatch SGD"]
    assert plain["Asynchronous SGD, delay-adaptive"] < lipschitz["Asynchronous SGD, delay-adaptive"]


def test_nobody_with_data_of_their_own_can_be_left_out():
    with pytest.raises(ValueError, match="no worker can be left out"):
        speedup([1.0, 9.0]).best_subset("heterogeneous", CONSTANTS, 0.1)


def test_a_constant_of_zero_leaves_its_column_open():
    rows = table_1(Constants(L=1.0, mu=0.0, sigma=1.0, B=1.0, Delta=1.0), workers=4, steps=100, max_delay=9)
    assert all(math.isnan(row.strongly_convex) and row.convex > 0 for row in rows)


def test_estimates_serve_wherever_constants_do():
    found = nw.theory.estimate(nw.problems.NoisyQuadratic(dimension=3, sigma=0.1))
    assert rennala_time([1, 2], found, 0.01) == rennala_time([1, 2], found.constants, 0.01)
    assert table_1(found, workers=2, steps=100, max_delay=3)[0].convex > 0
    assert speedup([1, 2]).times("convex", found, 0.01)


def test_an_accuracy_beyond_reach_takes_for_ever():
    assert Rate.of("convex", CONSTANTS).steps_to(1e-300, width=4) == math.inf
