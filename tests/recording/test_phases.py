"""Where the time of workers goes: phases from the rows of a trace, and who is slow and why."""

import dataclasses
import pickle

import numpy as np
import pytest

import nowait as nw
from nowait.core import WorkerLost
from nowait.recording import Trace, TraceRecorder
from nowait.recording.diagnosis import diagnosis, slowest, table_of_workers
from nowait.recording.framefile import FrameFile
from nowait.recording.journal import Journal
from nowait.recording.phases import PHASES, Phases, PhaseTotals
from nowait.recording.rows import ARRIVAL_DTYPE, EVENT_DTYPE
from nowait.recording.tally import Tally
from nowait.recording.worker_stats import Placement, WorkerStats
from nowait.testing import ScriptedWorkers

JOINED, LOST, TIMER, RESUMED = range(4)


def rows(*arrivals):
    """Rows from (worker, job, version, step, started, seconds, time)."""
    table = np.zeros(len(arrivals), ARRIVAL_DTYPE)
    for place, (worker, job, version, step, started, seconds, time) in enumerate(arrivals):
        row = table[place]
        row["worker"], row["job"], row["version"], row["step"] = worker, job, version, step
        row["started"], row["compute_seconds"], row["time"] = started, seconds, time
    return table


def events(*happened):
    return np.array(list(happened), EVENT_DTYPE)


NONE = events()


def totals_of(table, happened=NONE, workers=(0, 1), **options):
    totals = PhaseTotals(workers, **options)
    totals.add(table, happened)
    return totals


def near(**seconds):
    return pytest.approx(dataclasses.asdict(Phases(**seconds)))


def phases_of(totals, worker, end):
    return dataclasses.asdict(totals.of_workers(end)[worker])


# Phases


def test_a_ticket_is_received_computed_and_sent():
    """The first ticket of a process is sent at once; until it begins, the process is started."""
    totals = totals_of(rows((0, 0, 0, 1, 0.5, 1.0, 2.0), (0, 1, 1, 2, 2.1, 1.0, 3.5)), workers=[0])
    assert phases_of(totals, 0, 3.5) == near(starting=0.5, receiving=0.1, computing=2.0, sending=0.5 + 0.4)


def test_a_worker_that_gets_no_ticket_until_a_step_waits_for_it():
    """Worker 0 delivers at 1; its next ticket contains step 1, which worker 1 makes at 4."""
    totals = totals_of(rows((0, 0, 0, 1, 0.0, 1.0, 1.0), (1, 0, 0, 1, 0.0, 4.0, 4.0), (0, 1, 1, 2, 4.5, 1.0, 5.5)))
    assert phases_of(totals, 0, 5.5) == near(waiting=3.0, receiving=0.5, computing=2.0)
    assert phases_of(totals, 1, 5.5) == near(computing=4.0, unfinished=1.5)


def test_time_on_a_ticket_that_was_cancelled_is_unfinished():
    """Job 1 has no row: it was cancelled at step 2, when job 2 was given out."""
    totals = totals_of(rows((0, 0, 0, 1, 0.0, 1.0, 1.0), (1, 0, 0, 2, 0.0, 3.0, 3.0), (0, 2, 2, 3, 3.0, 1.0, 4.0)))
    assert phases_of(totals, 0, 4.0) == near(computing=2.0, unfinished=2.0)


def test_what_a_worker_did_before_it_was_lost_is_unfinished_and_while_it_is_away_it_has_no_time():
    happened = events((1, LOST, 0, 3.0), (1, JOINED, 0, 10.0))
    totals = totals_of(rows((0, 0, 0, 1, 0.0, 1.0, 1.0), (0, 2, 1, 2, 10.5, 1.0, 12.0)), happened, workers=[0])
    assert phases_of(totals, 0, 12.0) == near(starting=0.5, computing=2.0, sending=0.5, unfinished=2.0)


def test_a_worker_that_was_lost_for_good_has_no_more_time():
    happened = events((1, LOST, 0, 3.0))
    totals = totals_of(rows((0, 0, 0, 1, 0.0, 1.0, 1.0), (1, 0, 0, 2, 0.0, 5.0, 5.0)), happened)
    assert phases_of(totals, 0, 9.0) == near(computing=1.0, unfinished=2.0)
    assert totals.in_flight(9.0) == [0.0, 4.0]


def test_a_resumed_run_starts_new_tickets():
    happened = events((1, RESUMED, -1, 1.5))
    totals = totals_of(rows((0, 0, 0, 1, 0.0, 1.0, 1.0), (0, 2, 1, 2, 2.0, 1.0, 3.0)), happened, workers=[0])
    assert phases_of(totals, 0, 3.0) == near(starting=0.5, computing=2.0, unfinished=0.5)


def test_timers_do_not_change_anything():
    table = rows((0, 0, 0, 1, 0.5, 1.0, 2.0), (0, 1, 1, 2, 2.1, 1.0, 3.5))
    assert totals_of(table, events((1, TIMER, -1, 2.0))).state() == totals_of(table).state()


def test_clocks_that_differ_make_no_negative_time():
    """The worker's clock is behind: it began before its order was sent, and was done after its report arrived."""
    totals = totals_of(rows((0, 0, 0, 1, 0.0, 1.0, 1.0), (0, 1, 1, 2, 0.9, 2.0, 2.0)), workers=[0])
    assert phases_of(totals, 0, 2.0) == near(computing=2.0)


def test_times_that_are_no_numbers_count_as_nothing():
    totals = totals_of(rows((0, 0, 0, 1, 0.0, 1.0, 1.0), (0, 1, 1, 2, np.nan, np.nan, 2.0)), workers=[0])
    assert phases_of(totals, 0, 2.0) == near(computing=1.0, sending=1.0)


def test_loading_is_taken_from_computing_and_from_receiving():
    totals = totals_of(rows((0, 0, 0, 1, 0.0, 1.0, 1.0), (0, 1, 1, 2, 2.0, 1.0, 3.0)), workers=[0])
    totals.loaded(0, 0.25, 0.0)
    totals.loaded(0, 0.5, 0.75)
    assert phases_of(totals, 0, 3.0) == near(receiving=0.25, loading=1.5, computing=1.25)


@pytest.mark.parametrize("method", [nw.MinibatchSGD(nw.Constant(0.1)), nw.AsynchronousSGD(nw.Constant(0.05))])
def test_the_phases_of_a_worker_add_up_to_its_time_however_the_rows_are_cut(method):
    speeds = nw.speeds.LogNormal([1.0, 1.0, 2.0, 5.0], sigma=0.3)
    run = nw.simulate(nw.problems.NoisyQuadratic(dimension=3, sigma=0.1), method, speeds, steps=200)
    trace, at_once, cut = run.trace, PhaseTotals(range(4)), PhaseTotals(range(4))
    at_once.add(trace.arrivals, trace.events)
    for first in range(0, len(trace), 7):
        cut.add(trace.arrivals[first : first + 7], NONE)
        cut = cut.copy()
    for worker, phases in at_once.of_workers(trace.seconds).items():
        assert phases.total == pytest.approx(trace.seconds)
        assert dataclasses.asdict(phases) == pytest.approx(dataclasses.asdict(cut.of_workers(trace.seconds)[worker]))
    assert np.array_equal(at_once.arrivals, cut.arrivals)


def test_with_minibatches_fast_workers_wait_and_the_slow_one_computes():
    speeds = nw.speeds.Fixed([1.0, 2.0, 10.0])
    problem = nw.problems.NoisyQuadratic(dimension=3)
    run = nw.simulate(problem, nw.MinibatchSGD(nw.Constant(0.1)), speeds, steps=20)
    fast, medium, slow = run.trace.by_worker()
    assert (fast.phases.waiting, fast.phases.computing) == pytest.approx((19 * 9.0, 20.0))
    assert (medium.phases.waiting, slow.phases.waiting) == pytest.approx((19 * 8.0, 0.0))
    assert slow.share_of("computing") == pytest.approx(1.0)


def test_a_checkpoint_keeps_the_totals():
    tally = Tally()
    tally.phases = totals_of(rows((0, 0, 0, 1, 0.5, 1.0, 2.0)))
    tally.phases.loaded(0, 0.5, 0.25)
    again = Tally.restored(tally.state())
    assert again.phases.of_workers(4.0) == tally.phases.of_workers(4.0)
    old = {name: value for name, value in tally.state().items() if name != "phases"}
    assert Tally.restored(old).phases is None, "checkpoints of older versions have none"


def test_the_times_of_the_latest_steps_are_known_however_many_there_are():
    """Worker 1 makes a step at every second; worker 0 begins each of its tickets half a second after a step."""
    totals, steps = PhaseTotals([0, 1]), 50_000
    for first in range(10**9, 10**9 + steps, 10_000):
        numbers = np.arange(first, first + 10_000)
        table = np.zeros(20_000, ARRIVAL_DTYPE)
        table["worker"] = np.tile([1, 0], 10_000)
        table["job"] = np.repeat(numbers, 2)
        table["step"][::2] = numbers
        table["version"][1::2] = numbers
        table["time"] = np.repeat(numbers - 10**9, 2) + np.tile([0.0, 0.75], 10_000)
        table["started"] = table["time"] - np.tile([0.0, 0.25], 10_000)
        table["compute_seconds"] = 0.25
        totals.add(table, NONE)
    waited = phases_of(totals, 0, steps)
    assert waited["waiting"] == pytest.approx((steps - 1) * 0.25)
    assert waited["receiving"] == pytest.approx((steps - 1) * 0.5)


def test_a_ticket_may_contain_a_step_of_long_ago():
    totals = PhaseTotals([0, 1])
    for first in range(0, 40_000, 1_000):
        table = np.zeros(1_000, ARRIVAL_DTYPE)
        table["worker"], table["job"] = 1, np.arange(first, first + 1_000)
        table["step"] = table["time"] = table["started"] = table["job"] + 1
        totals.add(table, NONE)
    totals.add(rows((0, 0, 30_000, 0, 40_000.0, 1.0, 40_001.0)), NONE)
    assert phases_of(totals, 0, 40_001.0) == near(waiting=30_000.0, starting=10_000.0, computing=1.0)


def test_a_checkpoint_without_new_arrivals_counts_the_events_before_it():
    recorder = TraceRecorder([0])
    recorder.follow_workers()
    recorder.happened(WorkerLost(0, 5.0))
    recorder.trace()
    recorder.write_to(FrameFile())
    _, tally = recorder.checkpoint()
    assert dataclasses.asdict(tally.phases.of_workers(9.0)[0]) == near(unfinished=5.0)


# In the trace


@pytest.mark.parametrize("form", ["npz", "rows", "pickle"])
def test_a_trace_keeps_where_workers_were(tmp_path, form):
    placements = (Placement(0, 0.0, "here", "cpu"), Placement(1, 2.5, "there", "cuda:0"))
    table = rows((0, 0, 0, 1, 0.0, 1.0, 1.0))
    trace = Trace(table, NONE, np.array([0]), 3.0, 1.0, placements=placements, loading={0: (0.25, 0.5)})
    if form == "npz":
        trace.save(tmp_path / "trace.npz")
        again = Trace.load(tmp_path / "trace.npz")
    elif form == "rows":
        trace.write(tmp_path / "trace.rows")
        again = Trace.load(tmp_path / "trace.rows")
    else:
        again = pickle.loads(pickle.dumps(trace))
    assert (again.placements, again.loading) == (placements, {0: (0.25, 0.5)})
    assert again.by_worker() == trace.by_worker()


def test_during_a_run_the_file_of_the_trace_can_be_brought_up_to_date(tmp_path):
    recorder = TraceRecorder([0])
    recorder.follow_workers()
    recorder.flush()
    recorder.write_to(FrameFile.open(tmp_path / "trace.rows", create=True))
    recorder.placed(0, 0.0, "here", "cpu")
    workers = ScriptedWorkers(nw.AsynchronousSGD(nw.Constant(0.1)), num_workers=1, log=recorder)
    workers.after(5)
    recorder.flush()
    journal = Journal(FrameFile.read_only(tmp_path / "trace.rows"))
    assert (journal.num_rows, journal.placements) == (5, [Placement(0, 0.0, "here", "cpu")])
    recorder.loaded(0, 1.0, 0.5)
    workers.after(7)
    recorder.flush()
    recorder.flush()
    journal = Journal(FrameFile.read_only(tmp_path / "trace.rows"))
    assert (journal.num_rows, len(journal.placements), journal.loading) == (12, 1, {0: (1.0, 0.5)})
    assert recorder.by_worker(9.0)[0].gradients == 12


# Who is slow, and why


def worker(number, gradients=100, node="", **seconds):
    return WorkerStats(number, node, "cpu", gradients, 0.25, Phases(**seconds))


USUAL = {"receiving": 1.0, "computing": 10.0, "sending": 1.0}


@pytest.mark.parametrize(
    ("phase", "advice"),
    [
        ("receiving", "check its network"),
        ("loading", "loading its data is slow"),
        ("computing", "its processor is slow"),
        ("sending", "check its network"),
    ],
)
def test_the_phase_that_exceeds_that_of_others_most_is_the_reason(phase, advice):
    slow = worker(3, node="spot-7", **(USUAL | {phase: USUAL.get(phase, 0.0) + 40.0}))
    workers = [*(worker(number, **USUAL) for number in range(3)), slow]
    assert slowest(workers).worker is slow
    said = diagnosis(workers)
    assert said.startswith("worker 3 on spot-7 is slow: a gradient takes 0.52 s, 4.33 times as long as usual, and ")
    assert f"of that is {phase}: " in said
    assert advice in said


def test_waiting_for_orders_makes_nobody_slow():
    workers = [worker(0, **USUAL), worker(1, **USUAL, waiting=1_000.0)]
    assert slowest(workers) is None
    assert "is waiting: the method lets fast workers wait" in diagnosis(workers)


def test_if_all_are_alike_the_largest_phase_is_named_unless_it_is_computing():
    assert diagnosis([worker(number, **USUAL) for number in range(3)]) == "no worker is much slower than the others"
    busy = [worker(number, computing=1.0, sending=9.0) for number in range(3)]
    assert "90% of their time is sending: gradients wait for the server" in diagnosis(busy)


def test_a_worker_that_has_delivered_nothing_is_the_slowest():
    silent = worker(2, gradients=0, node="spot-1", unfinished=60.0)
    assert diagnosis([worker(0, **USUAL), silent]) == (
        "worker 2 on spot-1 is slow: it has delivered no gradient in 60 s"
    )
    just_started = worker(2, gradients=0, unfinished=0.1)
    assert diagnosis([worker(0, **USUAL), just_started]) == "no worker is much slower than the others"
    assert diagnosis([silent]) == "no worker has delivered a gradient"
    assert diagnosis([]) == ""


def test_the_table_has_a_line_for_each_worker_and_a_column_for_each_phase_that_occurs():
    table = table_of_workers([worker(0, node="a", **USUAL), worker(1, 10, node="b", sending=5.0)])
    header, first, second, said = table.splitlines()
    assert header.split() == ["worker", "node", "gradients", "share", "s/gradient", "receiving", "computing", "sending"]
    assert first.split() == ["0", "a", "100", "25.0%", "0.12", "8%", "83%", "8%"]
    assert second.split() == ["1", "b", "10", "25.0%", "0.5", "0%", "0%", "100%"]
    assert said.startswith("worker 1 on b is slow")
    assert set(PHASES) >= set(header.split()[5:])
