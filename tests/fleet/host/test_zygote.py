"""The process that starts workers: killed or interrupted while it loads. And what a run leaves in memory."""

import contextlib
import dataclasses
import errno
import gc
import itertools
import os
import signal
import socket
import sys
import threading
import types
import weakref
from pathlib import Path

import numpy as np
import pytest

import nowait as nw
from faulty import Faulty, train_until
from forked_zygotes import children
from nowait.fleet.host import launch
from nowait.fleet.host.host import Machine, Mailbox, Resources
from nowait.fleet.host.launch import start_zygote
from nowait.fleet.platform import portable
from nowait.fleet.server import patience
from nowait.fleet.server.events import HostReady, ProcessDied
from nowait.fleet.wire.hub import Hub
from nowait.fleet.wire.records import REPORT, ReportKind
from nowait.fleet.wire.stream import MessageStream
from nowait.fleet.worker.worker import run_worker
from nowait.testing import CATALOGUE

pytestmark = pytest.mark.new_interpreter

ASYNCHRONOUS = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))
READY = REPORT.pack(0, 0.0, 0.0, 1, ReportKind.READY)


class Loads(Faulty):
    """Counts how often it was loaded, in a folder, and kills the process that loads it where a test says."""

    def __init__(self, folder, deadly):
        super().__init__({(0, 20): "kill_parent"})
        self.folder, self.deadly = str(folder), deadly

    def prepare(self):
        number = len(os.listdir(self.folder))
        open(f"{self.folder}/{number}", "w").close()
        if number in self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def kill_parent(self, gradient):
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()


@pytest.mark.skipif(portable(), reason="there prepare() is called in every worker, not in the zygote alone")
def test_a_second_kill_of_the_zygote_while_it_reloads_is_one_more_failure(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(patience, "FIRST_PAUSE", 1e-3)
    problem = Loads(tmp_path, deadly={1, 2})
    run = train_until(lambda jobs: {0, 1} <= jobs.keys() and jobs[0] > 20, problem, ASYNCHRONOUS, workers=2)
    assert len(os.listdir(tmp_path)) == 4, "it was loaded once, twice in vain, and once more"
    assert [event["worker"] for event in run.trace.events if event["kind"] == 0] == [0, 1], "each came back once"
    assert caplog.text.count("was killed: it is started again") == 2
    assert np.array_equal(nw.replay(run.trace, Faulty(), ASYNCHRONOUS).last, run.last)


@pytest.mark.skipif(portable(), reason="there prepare() is called in every worker, not in the zygote alone")
def test_a_zygote_that_never_comes_back_stops_the_run(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(patience, "FIRST_PAUSE", 1e-3)
    problem = Loads(tmp_path, deadly=range(1, 100))
    with pytest.raises(nw.WorkerFailedError, match="the process that starts workers ended repeatedly"):
        nw.train(problem, ASYNCHRONOUS, workers=2, steps=10**9, max_failures=2)
    assert len(os.listdir(tmp_path)) == 3, "once well, and as often as failures are allowed"


@pytest.mark.skipif(portable(), reason="there prepare() is called in every worker, not in the zygote alone")
def test_time_goes_on_while_the_zygote_reloads(tmp_path, caplog):
    """It is killed after the first loss, and loads for ever then; but the budget of seconds ends the run."""

    class Endless(Faulty):
        folder = str(tmp_path)

        def prepare(self):
            if os.path.exists(f"{self.folder}/evaluated"):
                signal.pause()

        def gradient(self, point, sample):
            if os.path.exists(f"{self.folder}/evaluated"):
                os.kill(os.getppid(), signal.SIGKILL)
            return super().gradient(point, sample)

    class Evaluated(nw.Callback):
        def on_evaluate(self, control):
            (tmp_path / "evaluated").touch()

    run = nw.train(Endless(), ASYNCHRONOUS, workers=2, seconds=1.0, evaluate_every=10**9, callbacks=[Evaluated()])
    assert run.stats.seconds >= 1.0
    assert run.trace.events["kind"].tolist() == [1, 1], "both workers were lost, and none came back"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_problem_loads_ends_everything_at_once(number, tmp_path):
    """The problem would load for ever."""

    class Endless(Faulty):
        def prepare(self):
            with open(pipe, "wb") as file:
                file.write(b".")
            signal.pause()

    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)

    def interrupt():
        with open(pipe, "rb") as file:
            file.read(1)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt, match="came before the run had begun"):
        nw.train(Endless(), ASYNCHRONOUS, workers=2, steps=10, folder=tmp_path / "run")
    thread.join()
    assert not (tmp_path / "run").exists()


def test_a_run_that_cannot_be_prepared_leaves_no_zygote(monkeypatch):
    """It starts before the run is prepared."""
    started = []

    def start(*arguments, **options):
        started.append(start_zygote(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(launch, "start_zygote", start)
    with pytest.raises(ValueError, match="initial"):
        nw.train(Faulty(dimension=5), ASYNCHRONOUS, workers=2, steps=10, initial=np.zeros(3))
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_a_module_that_cannot_be_imported_does_not_keep_a_zygote_from_loading_its_job():
    class Elsewhere(Faulty):
        __module__, __qualname__ = "no.such.module", "Elsewhere"

        def __reduce__(self):
            return Faulty, ()

    assert nw.train(Elsewhere(), ASYNCHRONOUS, workers=2, steps=10).stats.steps == 10


# Memory


class Keep(nw.Callback):
    """Keeps what callbacks get, as users may."""

    def on_step(self, control):
        self.control = control
        self.server = weakref.ref(control._session.server)


def _maps_and_files_of_shared_memory():
    maps = [line for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines() if "memfd:nowait" in line]
    links = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    return len(maps), sum("memfd:nowait" in link for link in links)


@pytest.fixture
def no_garbage_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("name", ["AsynchronousSGD", "RennalaSGD", "GradientTable"])
def test_a_finished_run_keeps_no_shared_memory_though_nobody_collects_garbage(name, tmp_path):
    before, keep, method = _maps_and_files_of_shared_memory(), Keep(), dataclasses.replace(CATALOGUE[name])
    run = nw.train(Faulty(dimension=500), method, workers=2, steps=20, folder=tmp_path / "run", callbacks=[keep])
    assert _maps_and_files_of_shared_memory() == before, "method and callbacks do not hold it either"
    assert np.array_equal(keep.control.params, run.last)
    assert keep.control.steps == 20
    del keep.control, method
    assert keep.server() is None, "there is no reference cycle"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("no_garbage_collection")
def test_a_run_that_failed_keeps_no_shared_memory_once_its_error_is_gone():
    before, method = _maps_and_files_of_shared_memory(), nw.RennalaSGD(nw.Constant(0.1), batch=2)

    def fail(control):
        raise RuntimeError("imagine a bug")

    with contextlib.suppress(RuntimeError):
        nw.train(Faulty(dimension=500), method, workers=2, steps=20, callbacks=[fail])
    assert _maps_and_files_of_shared_memory() == before


def test_a_problem_that_ends_its_worker_shows_where(capfd):
    process = os.fork()
    if process == 0:
        run_worker(0, lambda: sys.exit(3))
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 3
    assert "lambda: sys.exit(3)" in capfd.readouterr().err


class CannotFork(Faulty):
    """The zygote is refused a process when it starts its third and fourth ones, those of workers 1 and 2."""

    def prepare(self):
        fork, calls = os.fork, itertools.count(1)

        def limited():
            if next(calls) in (3, 4):
                raise BlockingIOError(errno.EAGAIN, "too many processes")
            return fork()

        os.fork = limited


@pytest.mark.skipif(portable(), reason="there workers are not forked")
def test_a_worker_that_cannot_be_forked_is_one_death_and_the_others_go_on(caplog):
    run = nw.train(CannotFork(), ASYNCHRONOUS, workers=3, steps=50, start="together")
    assert run.stats.steps == 50
    assert caplog.text.count(f"could not be started ({os.strerror(errno.EAGAIN)}): it is replaced") == 2
    assert "was killed" not in caplog.text


@pytest.fixture
def machine():
    """A machine without a job, what its workers write to, and what it has passed on."""
    with contextlib.closing(Mailbox.open()) as mailbox:
        payload = types.SimpleNamespace(sizes=[], fd=mailbox.reports)
        slots = types.SimpleNamespace(views=[], fd=mailbox.reports, close=lambda: None)
        machine = Machine(Resources(slots, slots, mailbox, payload), Hub(), lambda records, _: taken.append(records))
        taken = []
        yield machine, mailbox, taken
        machine.close()


def test_reports_that_come_together_with_a_message_of_the_zygote_are_passed_on_once(machine):
    """Before the death of a process all reports are passed on, so there are none any more when it is their turn."""
    machine, mailbox, taken = machine
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        machine.open()
        machine.add(ours, lambda event: None, host=1, seats=1)
        for _ in range(3):
            MessageStream(theirs).send(("ready",), (), wait=lambda: None)
            os.write(mailbox.workers_reports, READY)
            machine.hub.wait(1.0)
    assert taken == [READY] * 3


def test_a_pool_that_is_closed_at_the_death_of_its_last_worker_says_nothing_more(machine):
    """Its zygote ends at the same time: the end of the host was asked for, so it is not lost."""
    machine, seen = machine[0], []
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    def emit(event):
        seen.append(event)
        if isinstance(event, ProcessDied):
            machine.remove(1)

    with theirs:
        pool = machine.add(ours, emit, host=1, seats=1)
        pool._orders[4] = os.open(os.devnull, os.O_WRONLY)
        zygote = MessageStream(theirs)
        for message in (("ready",), ("died", 4, 0), ("ended", "its zygote ended")):
            zygote.send(message, (), wait=lambda: None)
        theirs.shutdown(socket.SHUT_WR)
        machine.hub.wait(1.0)
    assert seen == [HostReady(1, 1, name=socket.gethostname()), ProcessDied(4, 0)]


# Copies


@dataclasses.dataclass
class NotesParents(Faulty):
    """Leaves a file for each process that starts workers."""

    folder: str = ""

    def gradient(self, point, sample):
        Path(self.folder, str(os.getppid())).touch()
        return super().gradient(point, sample)


@pytest.mark.skipif(portable(), reason="there zygotes are not forked")
def test_runs_inside_the_block_get_copies_of_one_zygote(tmp_path, monkeypatch):
    launched, start = [], launch.start_zygote
    monkeypatch.setattr(launch, "start_zygote", lambda *some, **more: launched.append(some) or start(*some, **more))
    problem = NotesParents(folder=str(tmp_path))
    with launch.shared_zygote(problem, 2):
        for _ in range(2):
            nw.train(problem, ASYNCHRONOUS, workers=2, steps=10, progress=False)
        assert len(launched) == 1
    assert len(os.listdir(tmp_path)) == 2, "each run has a zygote of its own"
    assert children() == []


def test_runs_with_other_settings_get_zygotes_of_their_own():
    with launch.shared_zygote(Faulty(), 1):
        run = nw.train(Faulty(), ASYNCHRONOUS, workers=os.cpu_count() + 1, steps=10, progress=False)
    assert run.stats.steps == 10


@pytest.mark.skipif(portable(), reason="there zygotes are not forked")
def test_a_shared_zygote_that_was_killed_is_replaced_by_new_ones():
    with launch.shared_zygote(Faulty(), 2):
        for child in children():
            os.kill(child, signal.SIGKILL)
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        run = nw.train(Faulty(), ASYNCHRONOUS, workers=2, steps=10, progress=False)
    assert run.stats.steps == 10
