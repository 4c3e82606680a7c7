"""Runs that are still running, or were killed: their state, and what can be read of them."""

import shutil

import numpy as np
import pytest

import nowait as nw
from nowait.recording import FolderState, folder_state
from nowait.recording.errors import DamagedFileError
from nowait.recording.framefile import FrameFile
from nowait.recording.lock import FileLock
from recording.test_folder import Scripted


@pytest.fixture
def running(tmp_path):
    """A run with 9 steps, three of them after the newest checkpoint, that holds the lock of its folder."""
    run = Scripted(tmp_path / "run", every=6).run(steps=9)
    run.recorder.flush()
    yield run
    run.keeper.close()


@pytest.fixture
def killed(running, tmp_path):
    """A copy of the folder, which no process has locked, as after SIGKILL."""
    shutil.copytree(running.folder.path, tmp_path / "killed")
    return tmp_path / "killed"


def test_a_folder_is_running_while_its_lock_is_held(running):
    assert folder_state(running.folder.path) is FolderState.RUNNING
    assert folder_state(running.folder.path) is FolderState.RUNNING  # asking did not release it


def test_a_folder_without_results_and_without_a_lock_was_killed(killed):
    assert folder_state(killed) is FolderState.KILLED


def test_a_saved_run_is_finished_and_an_interrupted_one_is_not(tmp_path):
    problem = nw.problems.NoisyQuadratic(dimension=2)
    run = nw.simulate(problem, nw.AsynchronousSGD(0.1), nw.speeds.Fixed([1.0]), steps=3, progress=False)
    run.save(tmp_path / "whole")
    object.__setattr__(run.stats, "interrupted", True)
    run.save(tmp_path / "cut")
    assert folder_state(tmp_path / "whole") is FolderState.FINISHED
    assert folder_state(tmp_path / "cut") is FolderState.INTERRUPTED


def test_other_folders_are_not_runs(tmp_path):
    assert folder_state(tmp_path) is FolderState.NOT_A_RUN
    assert folder_state(tmp_path / "missing") is FolderState.NOT_A_RUN


def test_asking_for_the_state_does_not_keep_a_run_from_starting(tmp_path, monkeypatch):
    """The first attempt to lock finds the shared lock of ``folder_state``; it is gone at the second one."""
    reader, writer, slept = FileLock(), FileLock(), []
    reader.acquire(tmp_path / ".lock", "locked")

    def release_instead_of_sleeping(seconds):
        slept.append(seconds)
        reader.release()

    monkeypatch.setattr("nowait.recording.lock.time.sleep", release_instead_of_sleeping)
    writer.acquire(tmp_path / ".lock", "locked")
    assert len(slept) == 1
    writer.release()


@pytest.mark.parametrize("folder", ["running", "killed"])
def test_what_an_unfinished_run_has_recorded_can_be_read(request, folder):
    path = request.getfixturevalue(folder)
    run = nw.load(path.folder.path if folder == "running" else path, unfinished=True)
    assert run.stats.steps == 9
    assert run.history.step.tolist() == list(range(1, 10))
    assert len(run.trace) == run.stats.gradients == 27
    assert run.trace.seconds == 27.0
    assert run.stats.work_share.sum() == pytest.approx(1.0)
    assert ("still running" in run.stats.advice) == (folder == "running")
    assert run.stats.interrupted == (folder == "killed")


def test_params_of_an_unfinished_run_are_those_of_the_newest_checkpoint(running):
    run = nw.load(running.folder.path, unfinished=True)
    newest = running.folder.checkpoints.read(6)
    assert np.array_equal(run.params, newest.state.params)
    assert not np.array_equal(run.params, running.server.params)


def test_without_the_option_an_unfinished_run_is_refused_with_its_state(killed):
    with pytest.raises(FileNotFoundError, match=r"has not finished \(killed\).*unfinished=True"):
        nw.load(killed)


def test_a_frame_that_is_being_written_is_left_out(killed):
    whole = nw.load(killed, unfinished=True)
    trace = FrameFile.open(killed / "trace.rows")
    trace.append(b"half of a frame")
    assert len(nw.load(killed, unfinished=True).trace) == len(whole.trace)


def test_a_trace_without_any_whole_frame_is_damaged(killed):
    (killed / "trace.rows").write_bytes(b"nonsense")
    with pytest.raises(DamagedFileError, match=r"trace\.rows"):
        nw.load(killed, unfinished=True)


def test_the_option_reads_finished_runs_too(tmp_path):
    run = nw.simulate(
        nw.problems.NoisyQuadratic(dimension=2),
        nw.AsynchronousSGD(0.1),
        nw.speeds.Fixed([1.0]),
        steps=3,
        progress=False,
    )
    run.save(tmp_path / "run")
    assert nw.load(tmp_path / "run", unfinished=True).stats.steps == 3
