"""By what a resumed run knows its problem again, and who computes it."""

import json
import logging
import math
import os
import shutil
import signal

import numpy as np
import pytest

import nowait as nw
from faulty import Faulty
from nowait.core import sampler
from nowait.engines.fingerprint import BLOCK, Fingerprint, Identification, Match, products_of
from nowait.fleet.host.host import Mailbox
from nowait.fleet.server import loop
from nowait.fleet.server.events import HOME
from nowait.fleet.wire.records import EVALUATOR, FINGERPRINTER
from nowait.testing import train_scripted
from nowait.testing.scripted import Die, Hang, Lose, Report, Wait

METHOD = nw.AsynchronousSGD(nw.Constant(0.05))
ALONG = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
RECORDED = {"problem": "Mine()", "params": [3, "float64"], "gradient_norm": 2.0, "gradient_direction": list(ALONG)}


WEIGHTED = [24.0, 10.0, -42.0, -1.0, -58.0, -12.0, -109.0, 34.0]


def of_norm(length, direction=ALONG, dtype="float64"):
    return Fingerprint(3, dtype, length, direction)


def turned(distance):
    """ALONG, turned by an angle at which the vectors are this far apart."""
    return (1 - distance**2 / 2, math.sqrt(distance**2 - distance**4 / 4), *ALONG[2:])


# Comparing


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (of_norm(2.0), Match.SAME),
        (of_norm(2.0 * (1 + 1e-7)), Match.SAME),
        (of_norm(2.0, turned(1e-7)), Match.SAME),
        (of_norm(2.0 * (1 + 1e-5)), Match.UNSURE),
        (of_norm(2.0, turned(1e-5)), Match.UNSURE),
        (of_norm(2.0, turned(0.04)), Match.UNSURE),
        (of_norm(None, ()), Match.UNSURE),
        (of_norm(3.0), Match.OTHER),
        (of_norm(2.0, turned(0.06)), Match.OTHER),
        (of_norm(2.0, (-1.0, *ALONG[1:])), Match.OTHER),
        (of_norm(0.0, ()), Match.OTHER),
        (Fingerprint(4, "float64", 2.0, ALONG), Match.OTHER),
        (of_norm(2.0, dtype="float32"), Match.OTHER),
    ],
)
def test_size_and_dtype_are_compared_exactly_and_the_gradient_with_a_tolerance(given, match):
    recorded = Fingerprint.read(RECORDED)
    assert recorded.compare(given, deterministic=True) is given.compare(recorded, deterministic=True) is match


def test_float32_has_a_larger_tolerance_because_other_processors_round_differently():
    own = of_norm(2.0, dtype="float32")
    assert own.compare(of_norm(2.0, turned(1e-3), "float32"), deterministic=True) is Match.SAME
    assert own.compare(of_norm(2.0, turned(0.2), "float32"), deterministic=True) is Match.UNSURE
    assert own.compare(of_norm(2.0, turned(0.3), "float32"), deterministic=True) is Match.OTHER


def test_two_gradients_that_are_zero_say_nothing():
    zero = of_norm(0.0, ())
    assert zero.compare(zero, deterministic=True) is Match.UNSURE
    assert zero.differs_by(zero) == "first gradients that are zero or not finite cannot be compared"


def test_gradients_that_vary_by_themselves_do_not_refuse_a_problem():
    recorded = Fingerprint.read(RECORDED)
    assert recorded.compare(of_norm(9.0), deterministic=False) is Match.UNSURE
    assert recorded.compare(Fingerprint(4, "float64", 2.0, ALONG), deterministic=False) is Match.OTHER


def test_a_fingerprint_is_written_and_read_back():
    fingerprint = Fingerprint.of(Faulty())
    gradient = Faulty().gradient(np.zeros(5), sampler(0).sample(0, 0))
    assert fingerprint.gradient_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-12)
    entry = json.loads(json.dumps(fingerprint.described(Faulty())))
    assert Fingerprint.read(entry) == fingerprint
    assert Fingerprint.of(Faulty({(0, 0): "nan"})).gradient_norm is None
    assert Fingerprint.read(None) is None


@pytest.mark.parametrize("size", [1, 7, 1000, 2 * BLOCK + 5])
def test_the_products_keep_the_length_and_have_fixed_weights(size):
    """Their distance estimates that of the gradients: within 25 % or so, and exactly if one entry differs."""
    draws = [sampler(3).sample(0, job).normals(size) for job in range(2)]
    lengths = [np.linalg.norm(draw) for draw in draws]
    products = [products_of(draw, length) for draw, length in zip(draws, lengths, strict=True)]
    distance = np.linalg.norm(draws[0] / lengths[0] - draws[1] / lengths[1])
    assert 0.4 * distance <= np.linalg.norm(products[0] - products[1]) <= 2 * distance
    assert np.array_equal(products_of(-draws[0], lengths[0]), -products[0])
    draws[0][size // 2] += 1.0
    assert np.linalg.norm(products_of(draws[0], lengths[0]) - products[0]) == pytest.approx(1 / lengths[0])


def test_the_weights_never_change():
    """Folders have products of them, so they must be the same in every version and on every machine."""
    assert products_of(np.arange(1.0, 41.0), 1.0).tolist() == WEIGHTED


class Renamed(Faulty):
    """Its gradient is another one of the same norm."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def gradient(self, point, sample):
        return self.change(super().gradient(point, sample))


@pytest.mark.parametrize("change", [np.negative, np.flip, lambda gradient: np.roll(gradient, 1)])
def test_another_gradient_of_the_same_norm_is_another_problem(change):
    own, other = Fingerprint.of(Faulty()), Fingerprint.of(Renamed(change))
    assert own.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-12)
    assert own.compare(other, deterministic=True) is Match.OTHER


@pytest.mark.parametrize(
    "entry",
    [
        3,
        {},
        {"params": [3], "gradient_norm": 1.0},
        RECORDED | {"gradient_norm": "x"},
        RECORDED | {"gradient_direction": None},
        RECORDED | {"gradient_direction": ["x"]},
    ],
)
def test_a_changed_fingerprint_is_an_error(entry):
    with pytest.raises(ValueError, match=r"config.json was changed: its fingerprint is"):
        Fingerprint.read(entry)


# What is known is recorded or compared


def identification(recorded):
    kept = []
    return Identification(Faulty(), recorded, "runs/mine", kept.append), kept


def test_a_new_run_records_it():
    mine, kept = identification(None)
    mine.known(Fingerprint(3, "float64", 2.0, ALONG))
    assert kept == [RECORDED | {"problem": repr(Faulty())[:200]}]


def test_a_resumed_run_refuses_another_problem_and_is_not_sure_of_a_similar_one(caplog):
    mine, kept = identification(RECORDED)
    with pytest.raises(ValueError, match=r"runs/mine is a run of another problem: that was Mine\(\) with params \[3"):
        mine.known(Fingerprint(3, "float64", 3.0, ALONG))
    mine, kept = identification(RECORDED)
    mine.known(Fingerprint(3, "float64", 2.02, ALONG))
    assert "the problem may not be the one of runs/mine" in caplog.text
    assert "the first gradients differ by 0.0099 of their norm" in caplog.text
    assert kept == []


def test_where_gradients_are_the_same_twice_a_similar_problem_is_another_one(caplog):
    strict = Identification(Alike(1.0), RECORDED, "runs/mine", fail, strict=True)
    for alike in (of_norm(2.0), of_norm(None, ())):
        strict.known(alike)
    given = of_norm(2.02)
    with pytest.raises(ValueError, match=r"differ by 0\.0099 of their norm, although machine, .* allow_changes=True"):
        strict.known(given)
    varying = Alike(1.0)
    varying.replayable = False
    Identification(varying, RECORDED, "runs/mine", fail, strict=True).known(given)
    assert "of their norm, which proves nothing, because its gradients are random" in caplog.text
    with pytest.raises(ValueError, match=r"whose gradients are random has to say replayable = False"):
        strict.known(of_norm(9.0))


def fail(entry):
    pytest.fail(f"{entry} was recorded")


def test_a_run_resumed_on_the_same_machine_refuses_a_problem_that_differs_a_little(tmp_path, caplog):
    run = nw.train(Alike(1.0), METHOD, workers=1, steps=4, folder=tmp_path / "run", checkpoint_every=2, audit=False)
    assert run.stats.steps == 4
    with pytest.raises(ValueError, match=r"is a run of another problem: .* although machine, versions and settings"):
        nw.resume(tmp_path / "run", Alike(1.01), steps=6)
    caplog.clear()
    assert nw.resume(tmp_path / "run", Alike(1.01), steps=6, allow_changes=True).stats.steps == 6
    assert "the problem may not be the one of" in caplog.text


class Alike:
    dimension = 3

    def __init__(self, factor):
        self.factor = factor

    def initial(self):
        return np.ones(3)

    def gradient(self, point, sample):
        return self.factor * point

    def loss(self, point):
        return 0.5 * self.factor * float(point @ point)


# The process that computes it, without a process


@pytest.mark.parametrize("recorded", [None, RECORDED])
@pytest.mark.parametrize("death", [[Die(FINGERPRINTER)], [Lose(HOME)]])
def test_a_run_goes_on_without_it_if_its_process_is_gone(death, recorded, caplog):
    mine, kept = identification(recorded)
    run = train_scripted(Faulty(), METHOD, workers=2, steps=20, script=death, identification=mine)
    assert (run.stats.steps, kept) == (20, [])
    assert ("has no fingerprint" if recorded is None else "could not be compared") in caplog.text


def test_a_new_run_waits_ten_seconds_for_it_and_records_it_later():
    mine, kept = identification(None)
    script = [Wait(11.0), Report(EVALUATOR), Report(0), Report(FINGERPRINTER)]
    run = train_scripted(Faulty(), METHOD, workers=2, steps=20, script=script, identification=mine)
    assert run.trace.worker[0] == 0
    assert run.stats.seconds < 1.0, "the clock of the run starts after the wait"
    assert len(kept) == 1


def test_a_resumed_run_waits_two_minutes_and_then_kills_the_process(caplog):
    mine, kept = identification(RECORDED)
    seen, script = [], [Hang(FINGERPRINTER), Wait(119.0), Wait(2.0)]
    run = train_scripted(Faulty(), METHOD, workers=2, steps=20, script=script, identification=mine, look=seen.append)
    assert seen[0].hosts.killed == [FINGERPRINTER]
    assert (run.stats.steps, kept) == (20, [])
    assert "could not be compared with the one of runs/mine: one gradient took longer than 120 s" in caplog.text


def test_without_a_folder_there_is_nothing_to_do():
    seen = []
    train_scripted(Faulty(), METHOD, workers=2, steps=5, look=seen.append)
    assert FINGERPRINTER not in [worker for worker, _ in seen[0].hosts.started]


@pytest.mark.parametrize("resumed", [False, True])
def test_an_answer_without_its_details_is_no_fingerprint(resumed, interrupted, tmp_path, caplog, monkeypatch):
    details = Mailbox.details
    monkeypatch.setattr(Mailbox, "details", lambda *given: None if given[1] == FINGERPRINTER else details(*given))
    if resumed:
        shutil.copytree(interrupted, tmp_path / "run", symlinks=True)
        assert nw.resume(tmp_path / "run", Faulty()).stats.steps == 100
    else:
        nw.train(Faulty(), METHOD, workers=1, steps=5, folder=tmp_path / "run")
    assert "computing one gradient failed: its traceback did not arrive" in caplog.text


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
    monkeypatch.setattr(loop, "SECONDS_TO_COMPARE", 0.2 if fault == "hang" else 120.0)
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
