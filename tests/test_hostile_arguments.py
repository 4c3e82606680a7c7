"""Arguments that nobody should give: each raises a TypeError or ValueError of ours, with a sentence, in every entry."""

import gzip
import linecache
import traceback
from pathlib import Path

import numpy as np
import pytest

import nowait as nw
from nowait.core import Server, checks

PROBLEM = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.1))
SPEEDS = nw.speeds.Fixed([1.0, 2.0])
TRACE = nw.simulate(PROBLEM, METHOD, SPEEDS, steps=3, progress=False).trace


class Unprintable:
    """Nothing can be done with it, not even printing it."""

    __hash__ = None

    def __repr__(self):
        raise RuntimeError

    def __bool__(self):
        raise RuntimeError

    def __eq__(self, other):
        raise RuntimeError


HUGE = {"2^63": 2**63, "10^400": 10**400, "5001 digits": 10**5000}
ARRAYS = {
    "array": np.array([1.0, 2.0]),
    "0-d array": np.array(3),
    "matrix": np.ones((2, 2)),
    "objects": np.array([None, {}], dtype=object),
    "masked": np.ma.array([1.0, 2.0], mask=[False, True]),
}
OTHERS = {"number": 3, "ragged": [[1.0], [1.0, 2.0]], "class": dict, "bytes": b"ab", "unprintable": Unprintable()}
ANYTHING = ARRAYS | OTHERS
LABELS = ANYTHING | {"pairs": [("a", 1)], "text": "no", "zero": 0, "same name": {1: 2, "1": 3}}
FOLDERS = ANYTHING | {"NUL": "a\0b", "list": ["a"]}
FLAGS = ANYTHING | {"text": "no", "sixty": 60, "zero": 0}
NAMES = ANYTHING | {"text": "no"}
LISTS = {name: value for name, value in ANYTHING.items() if name not in ("array", "number")} | {
    "none": [],
    "mapping": {99: 2.0},
    "set": {1.0, 2.0},
    "huge": [10**400],
}
COUNTS = ANYTHING | HUGE | {"minus": -1, "true": True, "fraction": 2.5}
del COUNTS["number"]
SEEDS = {name: value for name, value in LISTS.items() if name != "huge"} | HUGE
FUNCTIONS = ANYTHING | {"text": "no", "zero": 0}
BUDGETS = {"steps": COUNTS, "gradients": COUNTS, "target": ANYTHING | {"list": [1]}}
RUNS = {"callbacks": ANYTHING | {"none of ours": [3]}, "update": ANYTHING, "output": ANYTHING, "progress": FLAGS}

ENTRIES = {
    "simulate": (nw.simulate, {"problem": PROBLEM, "method": METHOD, "speeds": SPEEDS, "steps": 3}),
    "train": (nw.train, {"problem": PROBLEM, "method": METHOD, "workers": 1, "steps": 3}),
    "sweep": (nw.sweep, {"problem": PROBLEM, "method": METHOD, "speeds": SPEEDS, "stepsizes": [0.1], "steps": 3}),
    "replay": (nw.replay, {"trace": TRACE, "problem": PROBLEM, "method": METHOD}),
    "race": (nw.race, {"problem": PROBLEM, "engine": "simulate", "speeds": SPEEDS, "gradients": 40}),
    "tune": (nw.tune, {"problem": PROBLEM, "method": METHOD, "speeds": SPEEDS, "steps": 3, "trials": 1}),
    "plan": (nw.plan, {"problem": PROBLEM, "seconds_per_gradient": [1.0, 2.0], "gradients": 100}),
    "resume": (nw.resume, {"folder": "no such folder", "problem": PROBLEM}),
}
"""Every entry with arguments that are right."""
TABLE = {
    "simulate": BUDGETS
    | RUNS
    | {
        "problem": ANYTHING,
        "method": ANYTHING,
        "speeds": ANYTHING,
        "faults": ANYTHING,
        "initial": ANYTHING,
        "seed": COUNTS,
        "labels": LABELS,
        "engine": NAMES,
        "trace": NAMES,
        "evaluate_every": COUNTS,
    },
    "train": BUDGETS
    | {
        "workers": COUNTS,
        "seed": COUNTS,
        "slowdown": ANYTHING,
        "speeds": ANYTHING,
        "labels": LABELS,
        "folder": FOLDERS,
        "engine": NAMES,
        "trace": NAMES,
        "start": NAMES,
        "replace_hung": FLAGS,
        "watch": FLAGS,
        "progress": FLAGS,
        "keep_best": ANYTHING,
        "max_failures": COUNTS,
        "keep_checkpoints": COUNTS,
        "server_threads": COUNTS,
        "metrics_port": {name: value for name, value in COUNTS.items() if name != "bytes"},
    },
    "sweep": {
        "steps": COUNTS,
        "gradients": COUNTS,
        "method": {name: value for name, value in ANYTHING.items() if name != "number"},
        "stepsizes": LISTS,
        "seeds": SEEDS,
        "threads": COUNTS,
        "folder": FOLDERS,
        "device": NAMES,
        "progress": FLAGS,
        "initial": ANYTHING,
    },
    "replay": RUNS | {"trace": ANYTHING, "seed": COUNTS, "initial": ANYTHING},
    "race": {
        "methods": ANYTHING,
        "engine": NAMES,
        "labels": LABELS,
        "seeds": SEEDS,
        "tell": FUNCTIONS,
        "log": FUNCTIONS,
        "folder": FOLDERS,
        "progress": FLAGS,
        "update": ANYTHING,
        "output": ANYTHING,
        "speeds": ANYTHING,
        "gradients": COUNTS,
    },
    "tune": BUDGETS
    | {
        "method": ANYTHING,
        "speeds": ANYTHING,
        "tell": FUNCTIONS,
        "engine": NAMES,
        "slowdown": ANYTHING,
        "start": ANYTHING | {"huge": 10**400, "minus": -1.0} | {"number": 0},
        "monitor": ANYTHING | {"list": []},
        "progress": FLAGS,
        "trials": COUNTS,
        "initial": ANYTHING,
    },
    "plan": {
        "seconds_per_gradient": LISTS,
        "seeds": SEEDS,
        "gradients": COUNTS,
        "methods": ANYTHING,
        "progress": FLAGS,
        "target_loss": ARRAYS | {"huge": 10**400},
    },
    "resume": {"folder": FOLDERS, "progress": FLAGS, "server_threads": COUNTS},
}
"""What is given instead, by entry and argument."""


def of_ours(error):
    """Whether a ``raise`` statement of the library made an error, and not Python, NumPy or the system."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    package = Path(nw.__file__).parent
    line = linecache.getline(last.filename, last.lineno).strip()
    return isinstance(error, TypeError | ValueError) and package in Path(last.filename).parents and line[:5] == "raise"


def check_refused(call, what):
    """Raise unless a call raises an error of ours with a sentence that is no longer than a few lines."""
    raised = None
    try:
        call()
    except Exception as error:  # of any kind: which kind is the question
        raised = error
    assert raised is not None, f"{what} was accepted"
    assert of_ours(raised), f"{what}: {type(raised).__name__}: {raised}"
    assert 20 < len(str(raised)) < 500, what


@pytest.mark.parametrize(("entry", "argument"), [(entry, name) for entry in TABLE for name in TABLE[entry]])
def test_a_hostile_argument_is_an_error_of_ours(entry, argument, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, right = ENTRIES[entry]
    assert argument in function.__annotations__
    for name, value in TABLE[entry][argument].items():
        arguments = {"progress": False} | right | {argument: value}
        check_refused(lambda arguments=arguments: function(**arguments), f"{entry}({argument}={name})")


MADE = {
    "stepsize": nw.AsynchronousSGD,
    "γ": nw.DelayAdaptive,
    "batch": lambda value: nw.RennalaSGD(0.1, batch=value),
    "batch of ATA": lambda value: nw.ATA(0.1, batch=value),
    "local steps": lambda value: nw.problems.LocalSteps(PROBLEM, value, 0.1),
    "timeout": lambda value: nw.MindFlayerSGD(0.1, timeout_seconds=value, trials=2),
    "trials": lambda value: nw.MindFlayerSGD(0.1, timeout_seconds=1.0, trials=value),
    "seconds": lambda value: nw.speeds.Fixed(value, workers=3),
    "up": lambda value: nw.speeds.UpDown(1.0, up=value, down=1.0, workers=3),
}


@pytest.mark.parametrize("name", MADE)
def test_a_hostile_number_is_an_error_of_ours(name):
    values = ANYTHING | HUGE | {"nan": float("nan"), "minus": -1}
    del values["number"]
    if name not in ("batch", "batch of ATA", "local steps", "trials"):
        del values["2^63"]
    if name in ("local steps", "timeout"):
        del values["array"]
    for what, value in values.items():
        check_refused(lambda value=value: MADE[name](value), f"{name}: {what}")


@pytest.mark.parametrize("budget", ["steps", "gradients"])
def test_a_sweep_of_runs_whose_plans_do_not_fit_into_memory(budget):
    for number in (2**62, 2**50):
        arguments = {"stepsizes": [0.1], "progress": False, budget: number}
        check_refused(lambda arguments=arguments: nw.sweep(PROBLEM, METHOD, SPEEDS, **arguments), f"{budget}={number}")


def test_a_round_of_ata_that_would_never_begin():
    with pytest.raises(ValueError, match=r"batch must be at most 16,777,216, got 4611686018427387904: every gradient"):
        nw.ATA(0.1, batch=2**62)


SWITCHES = {
    "RennalaSGD": lambda value: nw.RennalaSGD(0.1, batch=2, cancel=value),
    "RingmasterASGD": lambda value: nw.RingmasterASGD(0.1, max_delay=2, cancel_stale=value),
    "MSynchronousSGD": lambda value: nw.MSynchronousSGD(0.1, m=2, cancel=value),
    "Muon": lambda value: nw.Muon(nesterov=value),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_true_or_false(name):
    for what, value in FLAGS.items():
        check_refused(lambda value=value: SWITCHES[name](value), f"{name}: {what}")
    assert SWITCHES[name](np.True_) == SWITCHES[name](True)


def test_a_cut_that_is_no_number():
    for what, value in ARRAYS.items():
        check_refused(lambda value=value: nw.DelayAdaptive(0.1, cut=value), what)


@pytest.mark.parametrize("event", [3, None, "event", np.zeros(3), object(), (1, 2), Unprintable()], ids=type)
def test_a_server_refuses_what_is_no_event(event):
    server = Server(METHOD, np.zeros(3), 1)
    server.start()
    with pytest.raises(TypeError, match="a server handles events of these classes: GradientArrived, WorkerJoined"):
        server.handle(event)
    assert server.now == 0.0


LOADERS = {
    "Race.load": nw.Race.load,
    "Sweep.load": nw.Sweep.load,
    "load": nw.load,
    "TensorBoard": nw.TensorBoard,
    "Recorded.read": lambda path: nw.speeds.Recorded.read([path]),
    "WhatIf.save": nw.whatif(nw.speeds.alibaba(1), resamples=2).save,
    "fresh_folder": nw.fresh_folder,
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_hostile_folder_is_an_error_of_ours(name):
    for what, path in (FOLDERS | {"half a character": "\ud800", "none": None}).items():
        check_refused(lambda path=path: LOADERS[name](path), f"{name}: {what}")


ROWS = nw.problems.LeastSquares.random(samples=8, dimension=2, seed=0)
TIMES = {"0-d": np.array(3), "huge": [[10**400]], "text": "no", "unprintable": Unprintable()}
PLACES = {
    "by": (lambda value: ROWS.split(2, by=value), NAMES),
    "by of a quadratic": (lambda value: PROBLEM.split(2, by=value), NAMES),
    "targets": (lambda value: nw.problems.LeastSquares(np.eye(3), value), ANYTHING),
    "classes": (lambda value: nw.problems.SoftmaxRegression(np.eye(3), value), ANYTHING),
    "labels": (lambda value: nw.problems.LogisticRegression(np.eye(3), value), ANYTHING | HUGE),
    "times": (nw.speeds.Recorded.of, TIMES),
    "record": (nw.speeds.Recorded, ANYTHING),
    "paths": (nw.speeds.Recorded.read, ANYTHING | {"none": None, "empty": []}),
    "counts": (lambda value: nw.speeds.Faults.from_availability(value, every=1.0), LISTS),
    "setting": (lambda value: nw.theory.prescribe(value, PROBLEM.constants(), workers=2, steps=5), NAMES),
    "lower bound": (lambda value: nw.theory.lower_bound_time([1.0], PROBLEM.constants(), 0.1, value), NAMES),
    "lemmas": (lambda value: nw.theory.check_lemmas(TRACE, 0.1, value), ANYTHING),
    "audit": (lambda value: nw.Audit(on_difference=value), NAMES),
    "certificate": (lambda value: nw.theory.certificate(value, PROBLEM.constants()), ANYTHING | {"run": nw.Run}),
    "trace of the lemmas": (lambda value: nw.theory.check_lemmas(value, 0.1, PROBLEM), ANYTHING | {"none": None}),
    "last of the lemmas": (lambda value: nw.theory.check_lemmas(TRACE, 0.1, PROBLEM, last=value), ANYTHING),
    "doubled": (
        lambda value: nw.theory.prescribe("convex", PROBLEM.constants(), workers=2, steps=5, doubled=value),
        FLAGS,
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_hostile_value_is_an_error_of_ours(name):
    call, values = PLACES[name]
    for what, value in values.items():
        check_refused(lambda value=value: call(value), f"{name}: {what}")


# Files


def test_a_libsvm_file_that_is_missing(tmp_path):
    for path in (tmp_path / "missing", tmp_path, tmp_path / "missing.gz"):
        with pytest.raises(FileNotFoundError, match="does not exist: give the path of a LIBSVM file"):
            nw.problems.LogisticRegression.from_libsvm(path)
    for name, path in FOLDERS.items():
        check_refused(lambda path=path: nw.problems.LogisticRegression.from_libsvm(path), name)


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_a_nested_trace_of_a_profiler(ending, tmp_path):
    path = tmp_path / f"trace{ending}"
    text = ('{"traceEvents": ' + "[" * 200_000).encode()
    path.write_bytes(gzip.compress(text) if ending == ".json.gz" else text)
    with pytest.raises(ValueError, match="is no trace in Chrome's format: its lists are nested too deeply"):
        nw.speeds.Recorded.read(path)


@pytest.mark.parametrize("number", ["1_000", "1__0", "_1"])
def test_a_number_with_underscores_in_a_table(number, tmp_path):
    """Python reads 1_000 as 1000, and no other program does."""
    path = tmp_path / "times.csv"
    path.write_text(f"worker,seconds\n0,1.0\n1,{number}\n")
    with pytest.raises(ValueError, match=f"column 'seconds' must be a number, got '{number}' in row 2"):
        nw.speeds.Recorded.read(path)


# Arrays with a mask


MASKED = np.ma.array([1.0, 2.0, 1.0], mask=[False, True, False])


@pytest.mark.parametrize(
    "call",
    [
        lambda: nw.simulate(PROBLEM, METHOD, SPEEDS, steps=2, initial=MASKED),
        lambda: nw.problems.LeastSquares(np.ma.array(np.eye(3), mask=np.eye(3)), np.ones(3)),
        lambda: nw.problems.LeastSquares(np.eye(3), MASKED),
        lambda: nw.problems.LogisticRegression(np.eye(3), MASKED),
        lambda: nw.problems.SoftmaxRegression(np.eye(3), MASKED),
        lambda: nw.speeds.Fixed(MASKED),
        lambda: nw.speeds.Recorded.of([MASKED]),
        lambda: nw.plan(PROBLEM, seconds_per_gradient=MASKED),
    ],
    ids=["initial", "features", "targets", "labels", "classes", "speeds", "recorded", "plan"],
)
def test_a_mask_is_not_lost(call):
    with pytest.raises(TypeError, match="is a masked array, and its mask would be lost: leave the masked entries out"):
        call()


# The shared checks


def test_labels_keep_all_their_entries():
    assert checks.labels({1: 2, "b": 3}) == {"1": 2, "b": 3}
    assert checks.labels(None) == {}
    with pytest.raises(ValueError, match="labels has two names that are written as '1', and only one would be kept"):
        checks.labels({1: 2, "1": 3})


def test_numpy_booleans_are_flags():
    assert checks.flag(np.True_, "watch") is True
    assert checks.flag_or_none(np.False_, "progress") is False
    assert checks.flag_or_none(None, "progress") is None


def test_outages_that_no_simulation_ends():
    with pytest.raises(ValueError, match=r"up=1e-320 is less than a millionth of seconds=1 \(worker 0\)"):
        nw.speeds.UpDown(1.0, up=1e-320, down=1.0, workers=2)


@pytest.mark.parametrize("time", ["1" + 400 * "0", "NaN", "-Infinity"])
def test_an_event_of_a_profiler_without_a_usable_time_is_left_out(time, tmp_path):
    path = tmp_path / "trace.json"
    event = '{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#%d", "pid": 1, "ts": %s, "dur": %s}'
    events = [
        event % (1, "0", "1000"),
        event % (2, "2000", "1000"),
        event % (3, time, "1000"),
        event % (4, "9000", time),
    ]
    path.write_text(f'{{"traceEvents": [{", ".join(events)}]}}')
    assert nw.speeds.Recorded.read(path).times.seconds.tolist() == [0.001, 0.001]
