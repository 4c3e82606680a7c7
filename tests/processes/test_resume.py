"""Checkpoints: the server is killed at any moment, and the run goes on as if nothing but time was lost."""

import contextlib
import functools
import json
import os
import select
import shutil
import signal
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import crashing
import nowait as nw
from faulty import Faulty, Watched, shared_memory
from forked_zygotes import TEMPLATES
from nowait.core import Server
from nowait.core.randomness import CounterRandom
from nowait.engines.keeper import checkpoint_of
from nowait.fleet import run as run_module
from nowait.fleet.host.launch import THREAD_VARIABLES
from nowait.fleet.options import WorkerOptions
from nowait.fleet.server import patience
from nowait.recording import HistoryRecorder, TraceRecorder
from nowait.recording.files import sealed, write_json
from nowait.recording.folder import RunFolder
from nowait.recording.framefile import FrameFile
from nowait.recording.journal import Journal
from nowait.recording.run import read_config
from nowait.testing import ScriptedWorkers

CRASHED = {"method": "asynchronous", "steps": 60, "every": 10}
MARK = "NOWAIT_TEST_RUN"
"""The environment variable by which the processes of a run are known."""


def crash(folder, **plan):
    """Run the script until it kills itself."""
    plan = {"folder": str(folder)} | plan
    code = f"import sys; sys.path[:] = {sys.path!r}; import crashing; crashing.main({plan!r})"
    threads = dict.fromkeys(
        THREAD_VARIABLES, "1"
    )  # as the workers of this process have, so that one template is enough
    assert TEMPLATES.fork(code, os.environ | threads | {MARK: str(folder)}).wait() == -signal.SIGKILL


def checkpoints(folder):
    return sorted(int(path.name.removeprefix("step_")) for path in (folder / "checkpoints").glob("step_*"))


def check_that_it_replays(run, problem, plan):
    assert len(np.unique(run.trace.ticket)) == len(run.trace), "no gradient is applied twice"
    steps = np.unique(run.trace.step[run.trace.step > 0])
    assert steps.tolist() == list(range(1, run.stats.steps + 1)), "every step was made once"
    again = nw.replay(run.trace, problem, crashing.METHODS[plan["method"]], seed=7, **crashing.options_of(plan))
    assert np.array_equal(again.last, run.last)
    assert np.array_equal(again.params, run.params)
    assert again.stats.lost == run.stats.lost


@pytest.fixture(scope="module")
def crashed_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crashed") / "run"
    crash(folder, die_at=30, **CRASHED)
    return folder


@pytest.fixture
def crashed(crashed_once, tmp_path):
    """The folder of a run that was killed at step 30."""
    return shutil.copytree(crashed_once, tmp_path / "run", symlinks=True)


@pytest.mark.parametrize(
    ("method", "parts"),
    [("asynchronous", True), ("rennala", False), ("auto", False), ("nesterov", False)],
)
def test_a_killed_server_goes_on_from_its_last_checkpoint(method, parts, tmp_path):
    plan = {"method": method, "steps": 120, "every": 25, "parts": parts}
    crash(tmp_path / "run", die_at=90, **plan)
    assert checkpoints(tmp_path / "run") == [25, 50, 75]
    assert not (tmp_path / "run" / "stats.json").exists()
    run = nw.resume(tmp_path / "run", Faulty())
    assert run.stats.steps == 120
    events = run.trace.events[run.trace.events["kind"] != 2]  # timers of Auto
    assert events["kind"].tolist() == [3], "it was resumed once"
    assert run.trace.step[: events["after"][0]].max() <= 75
    check_that_it_replays(run, Faulty(), plan)
    assert run.history.step[0] in (0, 75), "the loss of step 0, unless the server died before it was computed"
    assert (np.diff(run.history.step) > 0).all()
    loaded = nw.load(tmp_path / "run")
    assert np.array_equal(loaded.last, run.last)
    assert loaded.config == run.config


@pytest.mark.parametrize("engine", [None, nw.RayCluster(), nw.Listen(port=0, key_file="key")], ids=repr)
def test_workers_that_join_a_resumed_run_later_have_a_share_of_the_data_of_their_own(engine, monkeypatch):
    """Every worker knows the numbers of all; workers 2 and 5 are started as soon as there is room."""
    jobs = []

    @contextlib.contextmanager
    def resources(points, job):
        jobs.append(job)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(run_module, "shared_resources", resources)
    server = Server(nw.AsynchronousSGD(0.1), np.zeros(2), [0, 1])
    checkpoint = types.SimpleNamespace(wanted=[0, 1, 2, 5])
    parts = types.SimpleNamespace(server=server, checkpoint=checkpoint, problem=Faulty(), best=None, wires=None)
    points = types.SimpleNamespace(length=2, dtype=np.dtype(float))
    if engine is None:
        train = functools.partial(run_module.train_here, seed=0, progress=False, zygote=None)
    else:
        train = functools.partial(run_module.train_elsewhere, engine, 1, seed=0, progress=False)
    with pytest.raises(KeyboardInterrupt):
        train(parts=parts, points=points, options=WorkerOptions())
    assert jobs[0].workers == (0, 1, 2, 5)


def test_a_method_goes_on_with_the_state_of_its_checkpoint_and_the_trace_says_so(tmp_path):
    plan = {"method": "auto", "steps": 80, "every": 10}
    crash(tmp_path / "run", die_at=35, **plan)
    crash(tmp_path / "run", die_at=60, resume=True, **plan)
    assert {"method.velocity"} <= read_vectors(tmp_path / "run", 50).keys()
    unfinished = nw.load(tmp_path / "run", unfinished=True)
    assert unfinished.stats.last_note == str(unfinished.trace.notes[-1])
    run = nw.resume(tmp_path / "run", Faulty())
    check_that_it_replays(run, Faulty(), plan)
    resumed = [note.after for note in run.trace.notes if "resumed" in note.numbers]
    assert resumed == run.trace.events["after"][run.trace.events["kind"] == 3].tolist()
    assert nw.load(tmp_path / "run").trace.notes == run.trace.notes


def read_vectors(folder, step):
    header = (folder / "checkpoints" / f"step_{step}" / "state.safetensors").read_bytes()
    return json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])


@pytest.mark.parametrize("number", [1, 3])
def test_a_server_killed_while_it_writes_a_checkpoint_goes_on_from_the_one_before(number, tmp_path):
    """The first one is that of step 0, which is written before the folder has its name."""
    plan = {"method": "rennala", "steps": 60, "every": 10}
    crash(tmp_path / "run", die_while_writing=number, **plan)
    if number == 1:
        assert not (tmp_path / "run").exists()
        crash(tmp_path / "run", die_while_writing=2, **plan)
        assert [path.name for path in tmp_path.iterdir()] == ["run"], "what the first crash left was removed"
        number = 2
    assert checkpoints(tmp_path / "run") == [0, 10, 20][: number - 1]
    run = nw.resume(tmp_path / "run", Faulty())
    assert run.stats.steps == 60
    check_that_it_replays(run, Faulty(), plan)


def test_a_trace_file_that_is_ahead_of_the_checkpoint_is_cut(tmp_path):
    """Rows were written, and steps of held gradients, but the checkpoint they belong to was not completed."""
    plan = {"method": "fedbuff", "steps": 60, "every": 10}
    crash(tmp_path / "run", die_while_writing=4, **plan)
    state = json.loads((tmp_path / "run" / "checkpoints" / "step_20" / "state.json").read_text())
    journal = Journal(FrameFile.read_only(tmp_path / "run" / "trace.rows"))
    assert journal.num_rows > state["rows"]
    assert journal.arrivals()["step"].max() > 20
    run = nw.resume(tmp_path / "run", Faulty())
    check_that_it_replays(run, Faulty(), plan)


def test_the_last_checkpoints_are_kept(tmp_path):
    nw.train(
        Faulty(),
        crashing.METHODS["asynchronous"],
        workers=2,
        steps=100,
        folder=tmp_path / "run",
        checkpoint_every=10,
        keep_checkpoints=2,
    )
    assert checkpoints(tmp_path / "run")[-2:] == [90, 100]
    assert len(checkpoints(tmp_path / "run")) <= 3, "and the best one, if it is older"


def test_checkpoints_by_time(tmp_path):
    run = nw.train(
        Faulty(),
        crashing.METHODS["asynchronous"],
        workers=2,
        steps=300,
        folder=tmp_path / "run",
        checkpoint_seconds=1e-6,
    )
    assert len(checkpoints(tmp_path / "run")) in (3, 4), "the last three, and the best one if it is older"
    assert checkpoints(tmp_path / "run")[-1] == run.stats.steps


def test_the_folder_of_a_run(tmp_path):
    run = nw.train(Faulty(), crashing.METHODS["asynchronous"], workers=2, steps=50, folder=tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")}
    assert names == {
        "checkpoints",
        "config.json",
        "metrics.jsonl",
        "params.safetensors",
        "stats.json",
        "trace.rows",
        "workers.log",
    }
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == run.history.step.tolist()
    with pytest.raises(FileExistsError, match="nothing is overwritten"):
        nw.train(Faulty(), crashing.METHODS["asynchronous"], workers=2, steps=50, folder=tmp_path / "run")


def test_a_finished_run_is_not_resumed(tmp_path):
    nw.train(Faulty(), crashing.METHODS["asynchronous"], workers=2, steps=20, folder=tmp_path / "run")
    with pytest.raises(ValueError, match=r"is finished: read it with nw.load"):
        nw.resume(tmp_path / "run", Faulty())


def test_another_problem_is_refused(crashed):
    with pytest.raises(ValueError, match="is a run of another problem"):
        nw.resume(crashed, Faulty(sigma=0.2))
    with pytest.raises(ValueError, match="is a run of another problem"):
        nw.resume(crashed, Faulty(dimension=6))


def test_parts_of_ones_own_have_to_be_passed_again(crashed):
    class Mine(nw.Stepsize):
        def __call__(self, delay, num_workers, step):
            return 0.05

    config = read_config(crashed)
    config["method"]["stepsize"] = {"type": "Mine"}
    write_json(crashed / "config.json", sealed(config))
    with pytest.raises(ValueError, match="the method of the run is a Mine, which is not of this library: pass method="):
        nw.resume(crashed, Faulty())
    run = nw.resume(crashed, Faulty(), method=nw.AsynchronousSGD(Mine()))
    assert run.stats.steps == 60


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"method": nw.RennalaSGD(0.05, batch=2)},
            r"method of the run in .*run is AsynchronousSGD, but method= has Renn",
        ),
        (
            {"method": nw.AsynchronousSGD(nw.DelayAdaptive(0.07))},
            r"method.stepsize.gamma of the run in .* is 0.05, but method= has 0.07: pass the method of the run, or ",
        ),
        ({"update": nw.Momentum()}, r"update of the run in .* is Sgd, but update= has Momentum"),
        ({"output": nw.UniformAverage()}, r"output of the run in .* is LastIterate, but output= has UniformAverage"),
    ],
)
def test_parts_that_differ_from_those_of_the_run_are_refused(other, message, crashed):
    with pytest.raises(ValueError, match=message):
        nw.resume(crashed, Faulty(), **other)
    with pytest.raises(TypeError, match="allow_changes must be True or False, got 'no'"):
        nw.resume(crashed, Faulty(), allow_changes="no", **other)
    assert checkpoints(crashed) == [10, 20, 30], "nothing was changed"


def test_parts_that_differ_are_used_if_the_caller_says_so(crashed):
    same = {"method": crashing.METHODS["asynchronous"], "update": nw.Sgd(), "output": nw.LastIterate()}
    assert nw.resume(crashed, Faulty(), steps=32, **same).stats.steps == 32
    nw.resume(crashed, Faulty(), update=nw.Momentum(0.3), steps=40, allow_changes=True)
    assert read_config(crashed)["update"] == {"type": "Momentum", "beta": 0.3}
    assert nw.resume(crashed, Faulty(), steps=42).stats.steps == 42


def test_one_call_starts_resumes_and_reads_a_run(tmp_path):
    def preempt(control):
        if control.steps == 30:
            os.kill(os.getpid(), signal.SIGTERM)

    folder, problem = tmp_path / "run", Faulty()

    def start_or_resume(steps=60, workers=2, **options):
        settings = {"checkpoint_every": 20, "update": nw.Momentum(0.2), "folder": folder, "resume": True}
        return nw.train(problem, nw.AsynchronousSGD(0.05), steps=steps, workers=workers, **(settings | options))

    first = start_or_resume(callbacks=[preempt])
    second = start_or_resume(workers=None)
    third = start_or_resume()
    assert first.stats.interrupted
    assert second.trace.events["kind"].tolist().count(3) == 1
    assert third.stats.wall_seconds == second.stats.wall_seconds, "it is read, and not made again"
    assert np.array_equal(third.params, second.params)
    assert third.problem is problem
    assert start_or_resume(steps=70).stats.steps == 70
    for other, message in [
        ({"steps": 50}, "has 70 steps already: steps=50 must be more than that"),
        ({"seed": 1}, r"seed of the run in .*run is 0, this call has 1: a run that is resumed keeps its settings"),
        ({"workers": 3}, r"workers of the run in .* is 2, this call has 3"),
        ({"update": nw.Adam()}, r"is Momentum, but update= has Adam: .* or allow_changes=True to go on with another"),
        ({"resume": False, "allow_changes": True}, r"allow_changes=True is for a run that goes on: give resume=True"),
        ({"folder": None, "checkpoint_every": None}, r"resume=True continues the run in a folder: give folder="),
    ]:
        with pytest.raises(ValueError, match=message):
            start_or_resume(**({"steps": 70} | other))
    assert start_or_resume(steps=80, update=nw.Momentum(0.3), allow_changes=True).stats.steps == 80
    with pytest.raises(TypeError, match="resume must be True or False, got 'no'"):
        start_or_resume(resume="no")
    with pytest.raises(TypeError, match="allow_changes must be True or False, got 'no'"):
        start_or_resume(allow_changes="no")
    nw.simulate(problem, nw.AsynchronousSGD(0.05), nw.speeds.Fixed([1.0]), steps=5).save(tmp_path / "simulated")
    with pytest.raises(ValueError, match=r"the run was not made by nw.train"):
        start_or_resume(folder=tmp_path / "simulated")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="nothing is overwritten"):
        start_or_resume(folder=tmp_path / "mine")


def test_what_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not the folder of a run: it has no config.json"):
        nw.resume(tmp_path, Faulty())
    nw.simulate(Faulty(), crashing.METHODS["asynchronous"], nw.speeds.Fixed([1.0]), steps=5).save(tmp_path / "run")
    with pytest.raises(ValueError, match=r"the run was not made by nw.train"):
        nw.resume(tmp_path / "run", Faulty())


def test_a_run_that_a_signal_ended_can_be_resumed(tmp_path, caplog):
    def interrupt(control):
        if control.steps == 30:
            os.kill(os.getpid(), signal.SIGTERM)

    method = crashing.METHODS["fedbuff"]
    options = {"workers": 3, "steps": 100, "seed": 7, "folder": tmp_path / "run", "checkpoint_every": 20}
    first = nw.train(Faulty(), method, callbacks=[interrupt], **options)
    assert first.stats.interrupted
    assert nw.load(tmp_path / "run").stats.steps == first.stats.steps < 100
    run = nw.resume(tmp_path / "run", Faulty())
    assert run.stats.steps == 100
    assert not run.stats.interrupted
    check_that_it_replays(run, Faulty(), {"method": "fedbuff"})


def test_a_folder_that_is_being_written_is_refused(tmp_path):
    def resume(control):
        if control.steps == 20:
            nw.resume(tmp_path / "run", Faulty())

    with pytest.raises(ValueError, match="is locked: another process is running this run"):
        nw.train(
            Faulty(),
            crashing.METHODS["asynchronous"],
            workers=2,
            steps=100,
            folder=tmp_path / "run",
            callbacks=[resume],
        )


def test_a_crash_while_resuming_leaves_the_run_as_resumable(tmp_path, monkeypatch):
    plan = {"method": "rennala", "steps": 60, "every": 10}
    crash(tmp_path / "run", die_at=35, **plan)
    for name in ("metrics.jsonl", "config.json"):

        def fail(source, target, name=name):
            if str(target).endswith(name):
                raise KeyboardInterrupt
            os.rename(source, target)

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(KeyboardInterrupt):
            nw.resume(tmp_path / "run", Faulty())
        monkeypatch.undo()
    run = nw.resume(tmp_path / "run", Faulty())
    assert run.stats.steps == 60
    check_that_it_replays(run, Faulty(), plan)


def test_workers_that_were_removed_do_not_come_back(tmp_path):
    class Remove(nw.Callback):
        def on_step(self, control):
            if control.steps == 10:
                control.remove_worker(0)
            if control.steps == 60:
                raise RuntimeError("imagine a power cut")

    method = crashing.METHODS["asynchronous"]
    with pytest.raises(RuntimeError, match="power cut"):
        nw.train(
            Faulty(), method, workers=3, steps=200, folder=tmp_path / "run", checkpoint_every=20, callbacks=[Remove()]
        )
    run = nw.resume(tmp_path / "run", Faulty())
    assert run.trace.live_workers[-1] == 2
    assert 0 not in run.trace.worker[run.trace.step > 60]


class Divided(Faulty):
    """The gradients of a worker are its share and the number of shares."""

    share = (0, 0)

    def take_share(self, share, num_shares):
        self.share = (share, num_shares)

    def gradient(self, point, sample):
        return np.array(self.share, dtype=float)


class SeenShares(nw.MinibatchSGD):
    """Notes the shares of the workers."""

    def __init__(self):
        super().__init__(nw.Constant(0.001))
        self.seen = {}

    def on_arrival(self, server, arrival):
        self.seen[arrival.worker] = tuple(arrival.gradient)
        super().on_arrival(server, arrival)


def test_the_workers_of_a_resumed_run_have_different_shares_though_their_numbers_have_a_gap(tmp_path):
    def remove(control):
        if control.steps == 2:
            control.remove_worker(1)

    method, folder, problem = SeenShares(), tmp_path / "run", Divided(dimension=2)
    nw.train(problem, method, workers=3, steps=4, folder=folder, checkpoint_every=2, callbacks=[remove])
    assert method.seen == {0: (0, 3), 1: (1, 3), 2: (2, 3)}
    method.seen.clear()
    nw.resume(folder, problem, method=method, steps=6)
    assert method.seen == {0: (0, 2), 2: (1, 2)}


def test_workers_that_were_being_replaced_when_the_server_died_come_back(tmp_path, caplog, monkeypatch):
    """Worker 0 died twice, and would be replaced in an hour."""
    monkeypatch.setattr(patience, "FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(patience, "LONGEST_PAUSE", 3600.0)

    def die(control):
        if control.steps >= 300 and control.num_workers == 1:
            raise RuntimeError("imagine a power cut")

    method, folder = nw.MinibatchSGD(nw.Constant(0.05)), tmp_path / "run"
    problem = Faulty({(0, 1): "kill", (0, 2): "kill"})
    with pytest.raises(RuntimeError, match="power cut"):
        nw.train(problem, method, workers=2, steps=10**6, folder=folder, checkpoint_every=1, callbacks=[die])
    config = read_config(folder)
    config["budget"]["steps"], config["checkpoint_every"] = checkpoints(folder)[-1] + 3, 1_000
    write_json(folder / "config.json", sealed(config))
    run = nw.resume(folder, Faulty())
    [resumed] = run.trace.events["after"][run.trace.events["kind"] == 3]
    assert 0 in run.trace.worker[resumed:]
    assert run.trace.live_workers[-1] == 2


def test_rows_of_held_gradients_are_written_again_when_they_are_stepped_and_reset_when_they_are_cut(tmp_path):
    recorder, losses = TraceRecorder([0, 1, 2]), HistoryRecorder()
    workers = ScriptedWorkers(nw.FedBuff(nw.Constant(0.1), buffer=4), num_workers=3, log=recorder)
    state = workers.server.state()
    folder = RunFolder.create(
        tmp_path / "run", {"run": "1" * 16}, 3, recorder, lambda log: checkpoint_of(state, log, [0], losses)
    )

    def steps_on_disk(length=None):
        return Journal(FrameFile.read_only(folder.path / "trace.rows"), length=length).column("step").tolist()

    workers.after(6)
    folder.write_checkpoint(checkpoint_of(workers.server.state(), recorder, [0, 1, 2], losses))
    assert steps_on_disk() == [1, 1, 1, 1, 0, 0]
    workers.after(3)
    folder.write_checkpoint(checkpoint_of(workers.server.state(), recorder, [0, 1, 2], losses))
    assert steps_on_disk() == [1, 1, 1, 1, 2, 2, 2, 2, 0]
    shutil.rmtree(folder.path / "checkpoints" / "step_2")
    assert steps_on_disk(folder.latest().position.length) == [1, 1, 1, 1, 0, 0]
    folder.close()


def test_averages_with_weights_go_on(tmp_path):
    """The strongly convex average weighs by the sum of all stepsizes so far."""
    method = crashing.METHODS["asynchronous"]

    def die(control):
        if control.steps == 55:
            raise RuntimeError("imagine a power cut")

    output = nw.StronglyConvexAverage(0.5)
    options = {"workers": 2, "steps": 100, "folder": tmp_path / "run", "checkpoint_every": 20, "output": output}
    with pytest.raises(RuntimeError, match="power cut"):
        nw.train(Faulty(), method, callbacks=[die], **options)
    run = nw.resume(tmp_path / "run", Faulty())
    again = nw.replay(run.trace, Faulty(), method, output=nw.StronglyConvexAverage(0.5))
    assert np.array_equal(again.params, run.params)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("workers", 0, "config.json, entry 'workers': workers must be an integer of at least 1"),
        ("keep_checkpoints", 0, "config.json, entry 'keep_checkpoints': it must be"),
        ("budget", 3, "config.json, entry 'budget': it must hold entries by name, got 3"),
    ],
)
def test_a_changed_config_is_checked(key, value, message, crashed):
    config = read_config(crashed)
    write_json(crashed / "config.json", sealed(config | {key: value}))
    with pytest.raises(ValueError, match=message):
        nw.resume(crashed, Faulty())


def test_a_folder_without_an_id_was_written_by_an_older_version(crashed):
    config = read_config(crashed)
    config["fingerprint"] = None
    del config["run"]
    write_json(crashed / "config.json", sealed(config))
    for read in (
        lambda: nw.load(crashed, unfinished=True),
        lambda: nw.resume(crashed, Faulty()),
        lambda: nw.train(Faulty(), crashing.METHODS["asynchronous"], steps=60, folder=crashed, resume=True),
    ):
        with pytest.raises(ValueError, match="was written by an earlier version of nowait"):
            read()


def test_chaos(tmp_path, caplog):
    """Workers are killed 30 times and the server 3 times in one run, at places drawn by lot."""
    random = CounterRandom(0, "chaos")
    kills = set()
    while len(kills) < 30:
        kills.add((random.integer(3), 2 + random.integer(250)))
    plan = {"method": "asynchronous", "steps": 10**6, "every": 50, "kills": sorted(kills)}
    folder, shared = tmp_path / "run", shared_memory()
    deaths = sorted(100 + random.integer(900) for _ in range(3))
    crash(folder, die_at=deaths[0], **plan)
    for death in deaths[1:]:
        crash(folder, die_at=max(death, checkpoints(folder)[-1] + 60), resume=True, **plan)
    rest = Watched(crashing.METHODS["asynchronous"], lambda jobs: sum(job > 252 for job in jobs.values()) == 3)
    run = nw.resume(folder, crashing.problem_of(plan), method=rest, callbacks=[rest], allow_changes=True)
    assert run.history.loss[-1] < 0.02 * run.history.loss[0]
    kinds = run.trace.events["kind"].tolist()
    assert kinds.count(3) == 3
    assert kinds.count(1) >= 20, "some workers were being killed when the server was"
    check_that_it_replays(run, Faulty(), plan)
    assert shared_memory() == shared
    _wait_for_processes_of(folder)


def _wait_for_processes_of(folder):
    """Every process of the crashed servers is gone, or about to be: wait for its end, not for a time."""
    mark = f"{MARK}={folder}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark not in path.read_bytes():
                continue
            handle = os.pidfd_open(int(path.parent.name))
        except OSError:
            continue  # it ended meanwhile
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        assert poller.poll(30_000), f"process {path.parent.name} of a killed server is still there"
        os.close(handle)
