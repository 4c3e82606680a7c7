"""Recorded jobs: lists of times, scaled, bootstrapped, and the jobs that come with the package."""

import numpy as np
import pytest

import nowait as nw
from nowait.api.rebuild import rebuild
from nowait.engines.budget import Budget
from nowait.engines.simulator import cold
from nowait.engines.simulator.blueprint import Blueprint
from nowait.speeds import Faults, Recorded
from nowait.speeds.kernels import seconds_of

PROBLEM, METHOD = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1), nw.AsynchronousSGD(nw.Constant(0.01))
TIMES = [[1.0, 0.1, 7.0], [0.3], [2.0, 1.0]]
PHASES = [[1.0] * 40 + [9.0] * 40, [100.0] * 80]
"""Worker 0 has a slow phase; worker 1 is always slower."""


def test_compiled_code_uses_the_same_times():
    speeds = Recorded.of(TIMES)
    timing, formula = speeds.timing(0), speeds.formula(0)
    for worker in range(7):
        jobs = range(9)
        assert [seconds_of(formula, worker, job) for job in jobs] == [timing(worker, job, 5.0)[0] for job in jobs]


def test_a_simulation_with_recorded_times_is_compiled():
    run = nw.simulate(PROBLEM, METHOD, nw.speeds.alibaba(4), steps=5_000)
    assert run.stats.engine == "compiled"
    mine = run.trace.compute_seconds[run.trace.worker == 3]
    assert np.array_equal(mine, np.resize(nw.speeds.alibaba(4).seconds[3], len(mine)))


def test_runs_of_several_seeds_have_the_same_arrivals_and_other_samples():
    sweep = nw.sweep(PROBLEM, METHOD, Recorded.of(TIMES), stepsizes=[0.01], seeds=[0, 1], steps=50, progress=False)
    alone = [nw.simulate(PROBLEM, METHOD, Recorded.of(TIMES), steps=50, seed=seed) for seed in (0, 1)]
    assert np.array_equal(alone[0].trace.time, alone[1].trace.time)
    last = [run.history.loss[-1] for run in alone]
    assert last[0] != last[1]
    assert sweep.final[0].tolist() == pytest.approx(last)


def test_one_plan_of_arrivals_serves_all_seeds():
    keys = [Blueprint(METHOD, [0, 1, 2], Recorded.of(TIMES), Faults([]), seed).arrivals_key() for seed in (0, 1)]
    assert keys[0] == keys[1]
    other = Blueprint(METHOD, [0, 1, 2], Recorded.of(TIMES).scaled(2.0), Faults([]), 0)
    assert other.arrivals_key() != keys[0]


def test_the_mean_times_say_how_many_gradients_a_budget_allows():
    speeds = Recorded.of([[1.0, 3.0], [4.0]])
    assert cold.most_gradients(Budget(seconds=40.0), speeds, 0) == 20 + 10


def test_arrays_are_taken_like_lists():
    speeds = Recorded.of(np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert [mine.tolist() for mine in speeds.seconds] == [[1.0, 2.0], [3.0, 4.0]]
    assert speeds.num_workers == 2


def test_a_scaled_job_has_every_time_multiplied():
    assert [mine.tolist() for mine in Recorded.of(TIMES).scaled(2.0).seconds] == [[2.0, 0.2, 14.0], [0.6], [4.0, 2.0]]
    slower_second = Recorded.of(TIMES).scaled([1.0, 10.0, 1.0])
    assert [mine.tolist() for mine in slower_second.seconds] == [[1.0, 0.1, 7.0], [3.0], [2.0, 1.0]]


def test_a_bootstrapped_job_consists_of_blocks_of_consecutive_times():
    speeds = Recorded.of([np.arange(1.0, 101.0)]).bootstrapped(3, block=10, seed=1)
    assert speeds.num_workers == 3
    for mine in speeds.seconds:
        blocks = mine.reshape(10, 10)
        assert set(np.diff(blocks).ravel()) <= {1.0, -99.0}, "a block goes on at the beginning after the last time"
    assert not np.array_equal(speeds.seconds[0], speeds.seconds[1])


def test_slow_workers_and_slow_phases_stay_slow_in_a_bootstrapped_job():
    speeds = Recorded.of(PHASES).bootstrapped(20, block=8)
    assert all(set(mine) == {100.0} for mine in speeds.seconds[1::2])
    changes = [np.count_nonzero(np.diff(mine)) for mine in speeds.seconds[::2]]
    assert max(changes) <= 20, "without blocks about 40 of the 79 would be changes"
    assert np.mean(speeds.seconds[::2]) == pytest.approx(5.0, rel=0.2)


def test_a_bootstrap_depends_on_its_seed_only():
    first, again, other = (Recorded.of(PHASES).bootstrapped(4, seed=seed).times.checksum() for seed in (0, 0, 1))
    assert first == again != other


def test_a_recorded_job_is_described_by_a_checksum():
    speeds = nw.speeds.alibaba(4)
    run = nw.simulate(PROBLEM, METHOD, speeds, steps=10)
    described = run.config["speeds"]
    times = {"array": [21_829], "dtype": "float64", "crc32": speeds.times.checksum()}
    assert described == {"type": "Recorded", "source": "Alibaba job 4", "workers": 10, "times": times}
    assert times["crc32"] != speeds.scaled(2.0).times.checksum()
    with pytest.raises(
        ValueError, match="the speeds has an array that the run folder does not hold: pass speeds= again"
    ):
        rebuild(described, "speeds")
    assert repr(speeds) == "Recorded(Alibaba job 4: 10 workers, 21,829 times)"


@pytest.mark.parametrize(("job", "speedup"), [(1, 1.07), (2, 1.13), (3, 1.07), (4, 3.26)])
def test_the_alibaba_jobs_have_their_known_speedups(job, speedup):
    speeds = nw.speeds.alibaba(job)
    assert speeds.num_workers == 10
    assert round(nw.theory.speedup(speeds.times.means()).speedup, 2) == speedup
    assert max(mine.max() for mine in speeds.seconds) == 1.0


def test_the_alibaba_times_are_in_order_of_the_logged_iterations():
    times = nw.speeds.alibaba(2).times
    assert np.diff(times.offsets).tolist() == [250, 239, 239, 239, 239, 239, 239, 239, 239, 239]
    steps = [times.steps[times.offsets[worker] : times.offsets[worker + 1]] for worker in range(10)]
    assert all((np.diff(mine) > 0).all() for mine in steps)
    assert steps[0][:3].tolist() == [1, 11, 21]
    assert steps[0][-1] == 2_486, "at the end only worker 0 was logged"


def test_machines_that_become_available_join_and_others_leave():
    faults = Faults.from_availability([0, 0, 2, 0, 0, 1, 2], every=10)
    assert faults.changes == [(10.0, "leave", 1), (10.0, "leave", 0), (30.0, "join", 0), (40.0, "join", 1)]
    run = nw.simulate(PROBLEM, METHOD, nw.speeds.Fixed([1.0, 2.0]), faults=faults, seconds=60)
    assert not ((run.trace.time > 10) & (run.trace.time <= 30)).any()
    assert run.trace.time[run.trace.worker == 1][5] == 42.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recorded.of([]), "seconds is empty: pass one list of times for every worker"),
        (lambda: Recorded.of([[1.0], []]), r"seconds\[1\] is empty: worker 1 needs at least one time"),
        (lambda: Recorded.of([[1.0], [2.0, 0.0]]), r"seconds\[1\]\[1\] must be a finite number above 0, got 0"),
        (lambda: Recorded.of([[1.0, float("nan")]]), r"seconds\[0\]\[1\] must be a finite number above 0, got nan"),
        (lambda: Recorded.of([1.0, 2.0]), r"seconds\[0\] must be a list of the times of worker 0, got 1.0"),
        (lambda: Recorded.of([["fast"]]), r"seconds\[0\] must be a list of the times of worker 0, got \['fast'\]"),
        (lambda: Recorded.of(3), "seconds must be one list of times for every worker, got 3"),
        (lambda: Recorded.of(TIMES).scaled(0.0), "factor must be a finite number above 0, got 0.0"),
        (lambda: Recorded.of(TIMES).scaled([1.0, 2.0]), "factor has 2 values for 3 workers"),
        (lambda: Recorded.of(TIMES).bootstrapped(0), "workers must be an integer of at least 1, got 0"),
        (lambda: Recorded.of(TIMES).bootstrapped(4, block=0), "block must be an integer of at least 1, got 0"),
        (lambda: Recorded.of(TIMES).bootstrapped(4, seed=-1), "seed must be an integer of at least 0, got -1"),
        (lambda: nw.speeds.alibaba(4).bootstrapped(1_000_000), "1,000,000 workers with 2,183 times each would take"),
        (lambda: nw.speeds.alibaba(5), "job must be at most 4, got 5: there are jobs 1 to 4"),
        (lambda: nw.speeds.alibaba("4"), "job must be an integer of at least 1, got '4'"),
        (lambda: Faults.from_availability([0, 0], every=1), "no count is above 0: there is never a machine"),
        (lambda: Faults.from_availability([1, -1], every=1), r"counts\[1\] must be an integer of at least 0, got -1"),
        (lambda: Faults.from_availability([1, 1.5], every=1), r"counts\[1\] must be an integer of at least 0, got 1.5"),
        (lambda: Faults.from_availability([1], every=0), "every must be a finite number above 0, got 0"),
        (lambda: Faults.from_availability(4, every=1), "counts must be a list of numbers of machines, got 4"),
    ],
)
def test_bad_arguments_of_recorded_jobs(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
