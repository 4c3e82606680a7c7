"""Real workers: the same iterates as in the simulator, faults, joins, signals, evaluation beside the run."""

import gc
import logging
import os
import pickle
import select
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import nowait as nw
from faulty import Conducted, Conductor, Faulty, InOrder, Waiting, Watched, shared_memory, train_until
from forked_zygotes import children
from nowait.core import sampler
from nowait.fleet.host import launch
from nowait.fleet.platform import portable
from nowait.fleet.server import patience
from nowait.fleet.wire.hub import Hub
from nowait.fleet.wire.shared import SharedSlots
from nowait.testing import CATALOGUE

ASYNCHRONOUS = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))
ORDER = [2, 0, 1, 1, 2, 2, 0, 2]


@pytest.fixture
def conductor(tmp_path):
    conductor = Conductor(tmp_path, workers=3)
    yield conductor
    conductor.close()


# The engine contract: the same arrivals make the same iterates


@pytest.mark.parametrize(
    "name",
    ["AsynchronousSGD", "MinibatchSGD", "FedBuff", "GradientTable", "RingleaderASGD", "RennalaSGD, cancel=False"],
)
def test_the_same_order_of_arrivals_gives_the_params_of_the_simulator(name, conductor):
    method = CATALOGUE[name]
    problem = Conducted(folder=conductor.folder)
    run = nw.train(problem, InOrder(method, ORDER, conductor), workers=3, steps=24, seed=5, audit=False)
    simulated = nw.simulate(problem.problem, method, nw.speeds.Adversary(ORDER), steps=24, seed=5)
    assert np.array_equal(run.last, simulated.last)
    columns = ["ticket", "worker", "job", "version", "delay", "outcome", "step", "weight", "stepsize", "gradient_norm"]
    for column in columns:
        assert np.array_equal(run.trace.arrivals[column], simulated.trace.arrivals[column]), column


@pytest.mark.parametrize("name", ["AsynchronousSGD", "FedBuff", "RennalaSGD", "GradientTable"])
def test_methods_replay_to_the_same_bits_after_crashes_errors_and_bad_gradients(name, caplog):
    problem = Faulty({(1, 2): "kill", (2, 3): "fail", (0, 4): "nan", (0, 7): "kill", (3, 0): "leave"})
    output = nw.UniformAverage()
    run = nw.train(problem, CATALOGUE[name], workers=4, steps=25, output=output)
    assert run.stats.steps == 25
    assert len(np.unique(run.trace.ticket)) == len(run.trace), "each ticket arrives once at most"
    again = nw.replay(run.trace, problem, CATALOGUE[name], output=output)
    assert np.array_equal(again.params, run.params)
    assert np.array_equal(again.last, run.last)
    assert again.stats.lost == run.stats.lost


def test_a_worker_that_is_cancelled_finishes_first_and_its_result_is_late():
    everybody = lambda jobs: len(jobs) == 4  # noqa: E731 (so the one that was too slow for the first step has reported)
    run = train_until(everybody, Faulty(), nw.RennalaSGD(nw.Constant(0.1), batch=3), workers=4)
    late = run.trace.outcome == "late"
    assert late.any()
    assert run.stats.late == late.sum()
    assert run.stats.cancelled >= run.stats.late


def test_what_a_worker_remembers_survives_cancelling_and_replays():
    problem = nw.problems.Compressed(Faulty({(1, 5): "kill", (0, 3): "fail"}), nw.problems.TopK(1))
    method = nw.RennalaSGD(nw.Constant(0.1), batch=3)
    run = train_until(lambda jobs: len(jobs) == 4 and jobs[1] > 5 and jobs[0] > 3, problem, method, workers=4)
    assert run.stats.late > 0
    assert np.array_equal(nw.replay(run.trace, problem, method).last, run.last)


# Faults


def test_a_killed_worker_is_replaced_and_loses_one_gradient(caplog):
    problem = Faulty({(1, 3): "kill"})
    run = train_until(lambda jobs: jobs.get(1, 0) > 3, problem, ASYNCHRONOUS, workers=3)
    kinds = [(event["kind"], event["worker"]) for event in run.trace.events]
    assert kinds == [(1, 1), (0, 1)], "worker 1 was lost, and joined again"
    assert run.stats.lost == 1
    assert "worker 1 was killed by signal 9: it is replaced" in caplog.text
    mine = run.trace.job[run.trace.worker == 1]
    assert 3 not in mine
    assert mine.max() > 3, "it goes on counting its jobs"


def test_an_error_is_shown_with_its_worker_and_the_run_goes_on(caplog):
    run = train_until(lambda jobs: jobs.get(2, 0) > 4, Faulty({(2, 4): "fail"}), ASYNCHRONOUS, workers=3)
    assert "worker 2 raised" in caplog.text
    assert "ArithmeticError: this sample cannot be computed" in caplog.text
    assert run.stats.lost == 1


def test_a_worker_that_hangs_is_named_and_replaced_if_asked(caplog, monkeypatch):
    monkeypatch.setattr(patience, "SHORTEST_DEADLINE", 0.02)
    problem = Faulty({(1, 40): "hang"})

    class Watch(nw.Callback):
        joined = False

        def on_worker_join(self, control, worker):
            self.joined = self.joined or worker == 1

        def on_step(self, control):
            if self.joined:
                control.stop()

    run = nw.train(problem, ASYNCHRONOUS, workers=2, steps=10**9, replace_hung=True, callbacks=[Watch()])
    assert "worker 1 has computed for" in caplog.text
    assert "it is replaced" in caplog.text
    assert run.stats.lost >= 1


def test_all_workers_are_replaced_if_the_zygote_is_killed(caplog, tmp_path):
    class Back(nw.Callback):
        joined = 0

        def on_worker_join(self, control, worker):
            self.joined += 1

    back = Back()

    class KillTheZygote(Faulty):
        def gradient(self, point, sample):
            if (sample.worker, sample.job) == (0, 20) and os.getppid() > 1:
                os.kill(os.getppid(), signal.SIGKILL)
            return super().gradient(point, sample)

    run = train_until(
        lambda jobs: jobs.get(0, 0) > 20 and back.joined == 3, KillTheZygote(), ASYNCHRONOUS, [back], workers=3
    )
    assert [event["worker"] for event in run.trace.events if event["kind"] == 0] == [0, 1, 2]
    assert "and workers [0, 1, 2] with it: they are replaced" in caplog.text
    assert np.array_equal(nw.replay(run.trace, Faulty(), ASYNCHRONOUS).last, run.last)


def test_many_workers_can_be_asked_for_at_once():
    workers = 20 if portable() else 200  # there each of them is an interpreter of its own
    run = nw.train(Faulty(), nw.MinibatchSGD(nw.Constant(0.1)), workers=workers, steps=2)
    assert run.stats.gradients == 2 * workers


def test_what_workers_print_is_not_lost(tmp_path):
    class Talking(Faulty):
        def gradient(self, point, sample):
            # one write, also where output is not buffered
            print(f"worker {sample.worker} at job {sample.job}\n", end="")  # noqa: T201
            return super().gradient(point, sample)

    train_until(lambda jobs: 1 in jobs, Talking(), ASYNCHRONOUS, workers=2, folder=tmp_path / "run")
    assert "worker 1 at job 0\n" in (tmp_path / "run" / "workers.log").read_text()


def test_files_of_a_problem_that_cannot_be_written_do_not_cost_the_run(tmp_path, caplog):
    class Unwritable(Faulty):
        def write_files(self, params, folder):
            raise OSError("no space")

    nw.train(Unwritable(), ASYNCHRONOUS, workers=1, steps=5, folder=tmp_path / "run")
    assert nw.load(tmp_path / "run").stats.steps == 5
    assert "the run is saved, but Unwritable.write_files failed: OSError('no space')" in caplog.text


def test_long_errors_in_any_script_are_shown():
    class Long(Faulty):
        def gradient(self, point, sample):
            raise ArithmeticError("ж" * 60_000)

    with pytest.raises(nw.WorkerFailedError, match="жжж"):
        nw.train(Long(), ASYNCHRONOUS, workers=2, steps=50)


def test_speeds_that_depend_on_time_count_from_the_beginning_of_the_run():
    """By its clock the only worker stands still after a minute."""
    speeds = nw.speeds.TimeVarying(lambda worker, time: 100.0 if time < 60 else 1e-6, workers=1, resolution=0.01)
    run = nw.train(Faulty(), ASYNCHRONOUS, speeds=speeds, steps=5, seconds=60)
    assert run.stats.steps == 5


# Workers to order, joins and leaves


def test_workers_imitate_a_speed_model():
    speeds = nw.speeds.Fixed([0.002, 0.02])
    run = train_until(lambda jobs: jobs.get(0, 0) > 2 and jobs.get(1, 0) > 2, Faulty(), ASYNCHRONOUS, speeds=speeds)
    assert run.trace.num_workers == 2
    for worker, seconds in enumerate((0.002, 0.02)):
        assert run.trace.compute_seconds[run.trace.worker == worker].min() >= seconds


def test_a_slowed_worker_takes_as_many_times_as_long():
    method, speeds = nw.MinibatchSGD(nw.Constant(0.1)), nw.speeds.Fixed([0.002, 0.002])
    run = nw.train(Faulty(), method, speeds=speeds, slowdown={0: 5.0}, steps=3)
    for worker, seconds in enumerate((0.01, 0.002)):
        assert run.trace.compute_seconds[run.trace.worker == worker].min() >= seconds


def test_a_cancelled_worker_does_not_play_slow_any_longer(tmp_path):
    """Worker 1 would take an hour; MindFlayer gives it up again and again. The run ends when it has a later job."""
    marker = tmp_path / "later job"

    class Noted(Faulty):
        def gradient(self, point, sample):
            if sample.worker == 1 and sample.job >= 3:
                marker.touch()
            return super().gradient(point, sample)

    method = nw.MindFlayerSGD(nw.Constant(0.1), timeout_seconds=0.02, trials=1)
    speeds = nw.speeds.Fixed([0.001, 3600.0])
    run = train_until(lambda jobs: marker.exists(), Noted(), method, speeds=speeds)
    assert run.stats.cancelled >= 3
    assert (run.trace.worker[run.trace.outcome == "late"] == 1).sum() >= 1


def test_workers_join_and_leave_while_it_runs():
    class Change(Watched):
        asked = False

        def on_step(self, control):
            if 0 in self.jobs and not self.asked:
                self.asked = True
                control.add_workers(2)
                control.remove_worker(0)
            super().on_step(control)

    problem, change = Faulty(), Change(ASYNCHRONOUS, lambda jobs: {0, 1, 2, 3, 4} <= jobs.keys())
    run = nw.train(problem, change, workers=3, steps=10**9, callbacks=[change])
    assert run.trace.live_workers[-1] == 4
    assert run.trace.live_workers[0] == 3
    assert np.array_equal(nw.replay(run.trace, problem, ASYNCHRONOUS).last, run.last)


# Evaluation beside the run


class AfterTheFirstLoss(Waiting):
    """Workers do not go on after their first gradients until the evaluator has computed the first loss."""

    def loss(self, point):
        if self.evaluations == 0:
            for worker in range(2):
                with open(f"{self.folder}/{worker + 1}", "wb", buffering=0) as pipe:
                    pipe.write(b".")
        return super().loss(point)

    def gradient(self, point, sample):
        if sample.job == 3:
            with open(f"{self.folder}/{sample.worker + 1}", "rb", buffering=0) as pipe:
                pipe.read(1)
        return super().gradient(point, sample)


def test_evaluation_does_not_stop_the_updates(tmp_path):
    conductor = Conductor(tmp_path, workers=3)

    def release(control):
        if control.steps == 500:
            conductor.let(0)

    problem = AfterTheFirstLoss(conductor.folder)
    run = nw.train(problem, ASYNCHRONOUS, workers=2, steps=800, evaluate_every=10, callbacks=[release])
    conductor.close()
    first, second, third = run.history.step[:3]
    assert first == 0
    assert 10 <= second < 500
    assert third >= 500, "the next one had to wait for it"
    assert run.history.step[-1] == 800
    assert run.history.loss[-1] == Faulty().loss(run.last)
    replayed = nw.replay(run.trace, Faulty(), ASYNCHRONOUS, evaluate_every=1).history
    assert np.array_equal(run.history.loss, replayed.loss[run.history.step]), "the losses are those of the snapshots"
    time_of_step = run.trace.time[run.trace.step == second]
    assert run.history.time[1] == time_of_step[0]


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_ends_the_run_well(number, tmp_path, caplog):
    def interrupt(control):
        if control.steps == 50:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    run = nw.train(
        Faulty(),
        ASYNCHRONOUS,
        workers=2,
        steps=10**9,
        callbacks=[interrupt],
        folder=tmp_path / "run",
        checkpoint_every=20,
    )
    assert run.stats.steps >= 50
    assert f"{signal.Signals(number).name} ended the run" in run.stats.advice
    assert nw.load(tmp_path / "run").stats.steps == run.stats.steps
    assert (tmp_path / "run" / "checkpoints" / f"step_{run.stats.steps}").is_dir()
    assert signal.getsignal(number) is before


def test_a_second_signal_kills_it():
    def interrupt(control):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        nw.train(Faulty(), ASYNCHRONOUS, workers=2, steps=10**9, callbacks=[interrupt])
    assert children() == []


# Nothing is left


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.new_interpreter
@pytest.mark.parametrize("ending", ["good", "error"])
def test_nothing_is_left_of_a_run(ending, caplog):
    nw.train(Faulty(), ASYNCHRONOUS, workers=2, steps=10)
    gc.collect()
    descriptors, shared = len(os.listdir("/proc/self/fd")), shared_memory()
    if ending == "good":
        nw.train(Faulty({(0, 3): "kill"}), ASYNCHRONOUS, workers=3, steps=100)
    else:
        with pytest.raises(nw.WorkerFailedError):
            nw.train(Faulty({0: "fail", 1: "fail"}), ASYNCHRONOUS, workers=2, steps=1_000)
    gc.collect()
    assert children() == []
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert shared_memory() == shared


@pytest.mark.new_interpreter
@pytest.mark.parametrize("arguments", [{"folder": "taken"}, {"evaluate_every": 0}, {"problem": "cannot be sent"}])
def test_a_run_that_does_not_begin_leaves_nothing(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken" / "data").mkdir(parents=True)
    problem = Faulty()
    if "problem" in arguments:
        problem.lock, arguments = threading.Lock(), {"folder": "new"}
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises((OSError, ValueError, TypeError)):
        nw.train(problem, ASYNCHRONOUS, **({"workers": 2, "steps": 10} | arguments))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert os.listdir(tmp_path) == ["taken"], "a folder is not left for a run that never began"
    assert children() == []


@pytest.mark.skipif(sys.platform != "linux", reason="pidfd_open is Linux's")
def test_workers_end_when_their_parent_is_killed(tmp_path):
    """Even one that hangs. The test waits for the deaths, not for a time."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
            import os, signal
            import nowait as nw
            from faulty import Faulty

            class Told(Faulty):
                def gradient(self, point, sample):
                    if sample.job == 5:
                        open({str(tmp_path)!r} + f"/pid{{sample.worker}}", "w").write(str(os.getpid()))
                        if sample.worker == 1:
                            os.kill(os.getpid(), signal.SIGSTOP)
                    return super().gradient(point, sample)

            def die(control):
                here = os.listdir({str(tmp_path)!r})
                if {{"pid0", "pid1"}} <= set(here) and os.path.getsize({str(tmp_path)!r} + "/pid1"):
                    print(*(open({str(tmp_path)!r} + "/" + name).read() for name in ("pid0", "pid1")), flush=True)
                    input()
                    os.kill(os.getpid(), signal.SIGKILL)

            nw.train(Told(), nw.AsynchronousSGD(nw.Constant(0.01)), workers=2, steps=10**9, callbacks=[die])
        """)
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        handles = [os.pidfd_open(pid) for pid in pids]
        process.stdin.write("\n")
        process.stdin.flush()
        process.wait()
        for handle in handles:
            _wait_readable(handle)  # a pidfd becomes readable when its process ends
            os.close(handle)


def _wait_readable(descriptor):
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    assert poller.poll(30_000), "a worker outlived its parent by half a minute"


# How it is called


def test_it_works_from_a_script_without_a_main_guard_and_for_problems_of_the_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import numpy as np
            import nowait as nw

            TARGET = np.ones(3)

            class Mine:
                dimension = 3
                def initial(self):
                    return np.zeros(3)
                def gradient(self, point, sample):
                    return point - TARGET + 0.1 * sample.normals(3)
                def loss(self, point):
                    return float(((point - TARGET) ** 2).sum())

            run = nw.train(Mine(), nw.AsynchronousSGD(nw.DelayAdaptive(0.1)), workers=2, steps=300)
            print(run.stats.steps, run.history.loss[-1] < 0.1)
        """)
    )
    for arguments, stdin in [([str(script)], None), (["-"], script.read_text())]:
        result = subprocess.run(
            [sys.executable, "-W", "error", *arguments], input=stdin, capture_output=True, text=True, check=False
        )
        assert result.stdout == "300 True\n", result.stderr


def test_a_problem_that_cannot_be_sent_says_so():
    problem = Faulty()
    problem.lock = threading.Lock()
    with pytest.raises(TypeError, match="lock of Faulty cannot be sent to worker processes: cannot pickle"):
        nw.train(problem, ASYNCHRONOUS, workers=2, steps=10)
    assert children() == []


class Unloadable(Faulty):
    def __reduce__(self):
        return (_refuse, ())


def _refuse():
    raise RuntimeError("not here")


def test_a_problem_that_cannot_be_loaded_says_why():
    with pytest.raises(nw.WorkerFailedError, match=r"workers could not load the problem(.|\n)*not here"):
        nw.train(Unloadable(), ASYNCHRONOUS, workers=2, steps=10)


def test_single_precision_and_the_data_of_a_linear_model():
    features = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    problem = nw.problems.LeastSquares(features, features @ np.ones(8, np.float32), batch_size=4)
    run = nw.train(problem, nw.AsynchronousSGD(nw.Constant(0.05)), workers=3, steps=2_000)
    assert run.last.dtype == np.float32
    assert run.history.loss[-1] < 1e-4
    assert np.array_equal(nw.replay(run.trace, problem, nw.AsynchronousSGD(nw.Constant(0.05))).last, run.last)


def test_a_budget_of_seconds_ends_the_run():
    run = nw.train(Faulty(), ASYNCHRONOUS, workers=2, seconds=0.2)
    assert run.stats.seconds >= 0.2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers must be an integer of at least 1"),
        ({"slowdown": {0: 0.5}}, r"slowdown\[0\] must be at least 1"),
        ({"slowdown": 100}, "slowdown must map worker numbers to factors"),
        ({"speeds": 3}, "speeds must be a nowait Speeds"),
        ({"speeds": nw.speeds.Adversary([0, 1])}, "real workers cannot follow Adversary"),
        ({"max_failures": -1}, "max_failures must be an integer of at least 0"),
        ({"checkpoint_every": 5}, "checkpoints are written to a folder: give folder= as well"),
        ({"folder": "x", "checkpoint_every": 0}, "checkpoint_every must be an integer of at least 1"),
        ({"folder": "x", "checkpoint_seconds": 0}, "checkpoint_seconds must be a finite number above 0"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, TypeError), match=message):
        nw.train(Faulty(), ASYNCHRONOUS, **({"workers": 2, "steps": 10} | arguments))
    assert os.listdir(tmp_path) == []


# Shared memory


def test_slots_grow_and_others_see_them():
    slots = SharedSlots(5, np.float32)
    first = slots.allocate()
    first[:] = 1
    others = SharedSlots(5, np.float32, os.dup(slots.fd), writeable=False)
    assert others[0].tolist() == [1] * 5
    for number in range(1, 50):
        slots.allocate()[:] = number
    first[:] = 7
    assert others[0].tolist() == [7] * 5
    assert others[49].tolist() == [49] * 5
    with pytest.raises(ValueError, match="read-only"):
        others[3][:] = 0
    slots.close()
    others.close()


def test_samples_are_pickled_as_they_are():
    sample = sampler(3).sample(1, 2)
    assert pickle.loads(pickle.dumps(sample)).indices(100, 4).tolist() == sample.indices(100, 4).tolist()


def test_warnings_go_to_the_log_and_nowhere_else(capfd, caplog):
    with caplog.at_level(logging.WARNING, logger="nowait"):
        train_until(lambda jobs: jobs.get(0, 0) > 2, Faulty({(0, 2): "kill"}), ASYNCHRONOUS, workers=2)
    assert "worker 0 was killed by signal 9" in caplog.text
    assert capfd.readouterr().out == "", "of this process and of its workers"


# What a worker does between two gradients, and how it is started


class Between(nw.problems.NoisyQuadratic):
    """Raises unless ``between_gradients`` was called once after each gradient."""

    gradients = calls = 0

    def gradient(self, point, sample):
        assert self.calls == self.gradients
        self.gradients += 1
        return super().gradient(point, sample)

    def between_gradients(self):
        self.calls += 1
        assert self.calls == self.gradients


def test_a_worker_calls_between_gradients_after_each():
    problem = Between(dimension=3, L=1.0, mu=0.5, sigma=0.1)
    run = nw.train(problem, ASYNCHRONOUS, workers=1, steps=5, max_failures=0)
    assert run.stats.steps == 5


class NotForked(nw.problems.NoisyQuadratic):
    """Must be prepared by the process that computes gradients."""

    prepared_by = None

    def prepare(self):
        self.prepared_by = os.getpid()
        return False

    def gradient(self, point, sample):
        assert self.prepared_by == os.getpid()
        return super().gradient(point, sample)


def test_a_problem_whose_process_must_not_be_forked_has_workers_that_are_new_interpreters():
    problem = NotForked(dimension=3, L=1.0, mu=0.5, sigma=0.1)
    run = nw.train(problem, ASYNCHRONOUS, workers=1, steps=3, max_failures=0)
    assert run.stats.steps == 3


def test_polling_before_sleeping_finds_the_same_input():
    hub, (reading, writing), seen = Hub(spin_seconds=1e-4), os.pipe(), []
    hub.add(reading, lambda: seen.append(os.read(reading, 1)))
    assert not hub.wait(1e-3)
    os.write(writing, b"x")
    assert hub.wait(60.0)
    assert seen == [b"x"]
    for end in (reading, writing):
        os.close(end)


def test_workers_poll_for_orders_if_they_are_told_to(monkeypatch):
    monkeypatch.setattr(launch, "spin_seconds", lambda **_: 1e-3)
    run = nw.train(Faulty(), ASYNCHRONOUS, workers=2, steps=20)
    assert np.array_equal(nw.replay(run.trace, Faulty(), ASYNCHRONOUS).last, run.last)
