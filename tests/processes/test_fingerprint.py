"""By what a resumed run knows its problem again, and who computes it."""

import json
import logging
import os
import shutil
import signal

import numpy as np
import pytest

import nowait as nw
from faulty import Faulty
from nowait.core import sampler
from nowait.engines.fingerprint import Fingerprint, Identification, Match
from nowait.engines.workers import fingerprinting
from nowait.engines.workers.fingerprinting import Fingerprinting
from nowait.engines.workers.records import ReportKind

METHOD = nw.AsynchronousSGD(nw.Constant(0.05))
RECORDED = {"problem": "Mine()", "params": [3, "float64"], "gradient_norm": 2.0}

# Comparing


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (Fingerprint(3, "float64", 2.0), Match.SAME),
        (Fingerprint(3, "float64", 2.0 * (1 + 1e-5)), Match.SAME),
        (Fingerprint(3, "float64", 2.01), Match.UNSURE),
        (Fingerprint(3, "float64", None), Match.UNSURE),
        (Fingerprint(3, "float64", 2.1), Match.OTHER),
        (Fingerprint(4, "float64", 2.0), Match.OTHER),
        (Fingerprint(3, "float32", 2.0), Match.OTHER),
    ],
)
def test_size_and_dtype_are_compared_exactly_and_the_norm_with_a_tolerance(given, match):
    assert Fingerprint.read(RECORDED).compare(given, deterministic=True) is match


def test_gradients_that_vary_by_themselves_do_not_refuse_a_problem():
    recorded = Fingerprint.read(RECORDED)
    assert recorded.compare(Fingerprint(3, "float64", 9.0), deterministic=False) is Match.UNSURE
    assert recorded.compare(Fingerprint(4, "float64", 2.0), deterministic=False) is Match.OTHER


def test_a_fingerprint_is_written_and_read_back():
    fingerprint = Fingerprint.of(Faulty())
    gradient = Faulty().gradient(np.zeros(5), sampler(0).sample(0, 0))
    assert fingerprint.gradient_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-12)
    entry = json.loads(json.dumps(fingerprint.described(Faulty())))
    assert Fingerprint.read(entry) == fingerprint
    assert Fingerprint.of(Faulty({(0, 0): "nan"})).gradient_norm is None
    assert Fingerprint.read(None) is None


@pytest.mark.parametrize("entry", [3, {}, {"params": [3], "gradient_norm": 1.0}, RECORDED | {"gradient_norm": "x"}])
def test_a_changed_fingerprint_is_an_error(entry):
    with pytest.raises(ValueError, match=r"config.json was changed: its fingerprint is"):
        Fingerprint.read(entry)


# The process that computes it, without a process


def started(recorded):
    kept = []
    mine = Fingerprinting(Identification(Faulty(), recorded, "runs/mine", kept.append))
    mine.started(serial=4, now=100.0)
    return mine, kept


def test_a_new_run_records_it():
    mine, kept = started(None)
    assert mine.blocks_the_run(100.0)
    mine.answered(ReportKind.FINGERPRINT, (3, "float64", 2.0))
    assert kept == [{"problem": repr(Faulty())[:200], "params": [3, "float64"], "gradient_norm": 2.0}]
    assert not mine.blocks_the_run(100.0)


def test_the_exit_of_a_process_that_has_answered_is_no_failure(caplog):
    mine, _ = started(None)
    mine.answered(ReportKind.FINGERPRINT, (3, "float64", 2.0))
    mine.ended("it ends as it should")
    assert caplog.text == ""


@pytest.mark.parametrize("recorded", [None, RECORDED])
def test_a_run_goes_on_without_it_if_it_cannot_be_computed(recorded, caplog):
    for answer in (
        lambda mine: mine.answered(ReportKind.ERROR, ("kind", "its traceback")),
        lambda mine: mine.answered(ReportKind.ERROR, None),
        lambda mine: mine.answered(ReportKind.FINGERPRINT, None),
        lambda mine: mine.ended("it was killed"),
    ):
        caplog.clear()
        mine, kept = started(recorded)
        answer(mine)
        assert (mine.blocks_the_run(100.0), mine.running, kept) == (False, False, [])
        assert ("has no fingerprint" if recorded is None else "could not be compared") in caplog.text


def test_a_resumed_run_refuses_another_problem_and_is_not_sure_of_a_similar_one(caplog):
    mine, kept = started(RECORDED)
    with pytest.raises(ValueError, match=r"runs/mine is a run of another problem: that was Mine\(\) with params \[3"):
        mine.answered(ReportKind.FINGERPRINT, (3, "float64", 3.0))
    mine, kept = started(RECORDED)
    mine.answered(ReportKind.FINGERPRINT, (3, "float64", 2.01))
    assert "the problem may not be the one of runs/mine" in caplog.text
    assert kept == []


@pytest.mark.parametrize(("recorded", "seconds", "killed"), [(None, 10.0, False), (RECORDED, 120.0, True)])
def test_a_process_that_takes_too_long_does_not_block_the_run(recorded, seconds, killed, caplog):
    """A new run may still record the answer later; a comparison would come too late."""
    mine, kept = started(recorded)
    assert mine.blocks_the_run(99.9 + seconds)
    assert not mine.blocks_the_run(100.0 + seconds)
    assert mine.must_be_killed() is killed
    mine.answered(ReportKind.FINGERPRINT, (3, "float64", 2.0))
    assert len(kept) == (recorded is None)


def test_without_a_folder_there_is_nothing_to_do():
    mine = Fingerprinting(None)
    assert not mine.is_wanted
    assert not mine.blocks_the_run(0.0)
    mine.ended("nothing")


# In runs


class Foreign(Faulty):
    """Its gradient must not be computed in this process, and uses up the global random state of its own."""

    def __post_init__(self):
        super().__post_init__()
        self.home = os.getpid()  # of the object: workers may import this module afresh

    def gradient(self, point, sample):
        assert os.getpid() != self.home
        np.random.random()  # noqa: NPY002
        return super().gradient(point, sample)


def interrupted_run(folder, problem, **options):
    def interrupt(control):
        if control.steps == 30:
            os.kill(os.getpid(), signal.SIGTERM)

    run = nw.train(problem, METHOD, workers=2, steps=100, folder=folder, callbacks=[interrupt], **options)
    assert run.stats.interrupted
    return run


def fingerprint_of(folder):
    return json.loads((folder / "config.json").read_text())["fingerprint"]


def test_a_worker_computes_it_and_another_problem_leaves_the_folder_as_it_was(tmp_path, caplog):
    np.random.seed(3)  # noqa: NPY002
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    run = interrupted_run(tmp_path / "run", Foreign())
    assert fingerprint_of(tmp_path / "run") == Fingerprint.of(Faulty()).described(Foreign())
    with pytest.raises(ValueError, match="is a run of another problem"):
        nw.resume(tmp_path / "run", Faulty(sigma=0.3))
    assert nw.load(tmp_path / "run").stats.steps == run.stats.steps
    caplog.clear()
    assert nw.resume(tmp_path / "run", Foreign()).stats.steps == 100
    assert caplog.text == ""
    assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    interrupted_run(folder, Faulty())
    return folder


@pytest.mark.parametrize("fault", ["kill", "leave", "fail", "hang"])
def test_a_gradient_that_crashes_raises_or_hangs_is_no_comparison(fault, interrupted, tmp_path, caplog, monkeypatch):
    """Job 0 of worker 0 is what the fingerprint is made of; the run has it behind when it is resumed."""
    monkeypatch.setattr(fingerprinting, "SECONDS_TO_COMPARE", 0.2 if fault == "hang" else 120.0)
    shutil.copytree(interrupted, tmp_path / "run", symlinks=True)
    recorded = fingerprint_of(tmp_path / "run")
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="nowait"):
        run = nw.resume(tmp_path / "run", Faulty({(0, 0): fault}))
    assert run.stats.steps == 100
    assert f"could not be compared with the one of {tmp_path / 'run'}" in caplog.text
    assert fingerprint_of(tmp_path / "run") == recorded


def test_a_run_without_a_fingerprint_is_resumed_with_a_warning_and_has_one_then(tmp_path, caplog):
    interrupted_run(tmp_path / "run", Faulty({(0, 0): "fail"}))
    assert "the problem has no fingerprint, so nw.resume will not be able to compare it" in caplog.text
    assert fingerprint_of(tmp_path / "run") is None
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    run = nw.resume(tmp_path / "run", Faulty())
    assert run.stats.steps == 100
    assert f"the problem cannot be compared with the one of {tmp_path / 'run'}" in caplog.text
    assert fingerprint_of(tmp_path / "run")["params"] == [5, "float64"]
