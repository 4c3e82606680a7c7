"""The title and the headline of a report, and the words for runs that did not end as planned."""

import dataclasses

import numpy as np
import pytest

import nowait as nw
from nowait.recording import History
from nowait.recording.unfinished import STILL_RUNNING, WAS_KILLED
from nowait.reports.headline import headline
from nowait.reports.states import left_the_axis, state_words
from nowait.reports.words import in_words, problem_in_words, title_of

PROBLEM = nw.problems.NoisyQuadratic(dimension=4, sigma=0.1)
SPEEDS = nw.speeds.Fixed([1.0, 2.0])


def a_run(method, losses, **stats):
    """Return a run with these losses at times 0, 1, 2, ..."""
    run = nw.simulate(PROBLEM, method, SPEEDS, gradients=20, progress=False)
    places = np.arange(len(losses))
    history = History(places * 100, places * 100, places.astype(float), np.array(losses, dtype=float))
    return dataclasses.replace(run, history=history, stats=dataclasses.replace(run.stats, **stats))


SYNCHRONOUS = nw.MinibatchSGD(nw.Constant(0.1))
ASYNCHRONOUS = nw.AsynchronousSGD(nw.Constant(0.1))


def test_the_headline_is_the_speedup_over_the_synchronous_method():
    runs = {"slow": [a_run(SYNCHRONOUS, [8, 4, 2])], "fast": [a_run(ASYNCHRONOUS, [8, 2, 1])]}
    found = headline(runs, {})
    assert found.text == "2 × as fast as slow"
    assert found.detail == "After 1 s fast had the final loss of slow (2), which needed 2 s."


@pytest.mark.parametrize(
    "runs",
    [
        {"a": [a_run(ASYNCHRONOUS, [8, 4])], "b": [a_run(ASYNCHRONOUS, [8, 2])]},
        {"a": [a_run(SYNCHRONOUS, [8, 4])], "b": [a_run(ASYNCHRONOUS, [8, 2], engine="processes")]},
        {"a": [a_run(SYNCHRONOUS, [8, 4])], "b": [a_run(ASYNCHRONOUS, [8, 2], advice=STILL_RUNNING)]},
        {"a": [a_run(SYNCHRONOUS, [8, 7.99])], "b": [a_run(ASYNCHRONOUS, [8, 2])]},
    ],
    ids=["no synchronous method", "virtual and real time", "still running", "a baseline that hardly moved"],
)
def test_runs_that_cannot_be_compared_in_time_get_the_lowest_loss(runs):
    found = headline(runs, {})
    assert found.text == "Lowest loss: 2"
    assert found.detail.startswith("B, after")


def test_one_run_gets_its_loss_and_diverged_runs_a_word():
    assert headline({"a": [a_run(ASYNCHRONOUS, [8, 2])]}, {}).text == "Loss 2"
    assert headline({"a": [a_run(ASYNCHRONOUS, [8, 9], diverged=True)]}, {}).text == "Every run diverged"
    assert headline({"a": [a_run(ASYNCHRONOUS, [])]}, {}).text == "No loss was evaluated"


def test_a_sweep_gets_its_best_stepsize():
    make = lambda size: nw.AsynchronousSGD(nw.Constant(size))  # noqa: E731
    sweep = nw.sweep(PROBLEM, make, SPEEDS, stepsizes=[0.01, 0.1, 1e6], seeds=2, gradients=60, progress=False)
    found = headline({}, {"mine": sweep})
    assert found.text == "Best stepsize: 0.1"
    assert "Of 3 stepsizes, 1 diverged." in found.detail


def test_the_crosses_of_a_sweep_are_counted_by_their_reason():
    make = lambda size: nw.AsynchronousSGD(nw.Constant(size))  # noqa: E731
    sweep = nw.sweep(PROBLEM, make, SPEEDS, stepsizes=[0.01, 0.1, 1e6], seeds=1, gradients=60, progress=False)
    curves = sweep.curves.copy()
    curves[0, :, -1] = 1.1 * curves[0, :, 0]
    found = headline({}, {"mine": dataclasses.replace(sweep, curves=curves)})
    assert "Of 3 stepsizes, 1 diverged and 1 ended above the initial loss." in found.detail


def test_a_title_says_in_words_what_the_runs_have_in_common():
    first, second = a_run(ASYNCHRONOUS, [1]), a_run(SYNCHRONOUS, [1])
    assert title_of([first.config], [2]) == "Asynchronous SGD: Noisy quadratic, dimension 4, 2 workers"
    assert title_of([first.config, second.config], [2, 3]) == "Noisy quadratic, dimension 4"
    assert title_of([{}], [0]) == "nowait report"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("LeastSquares(10000 dense rows, dimension 400, batch_size=1, l2=0.0)", "Least squares, 10,000 × 400"),
        ("LogisticRegression(60 sparse rows, dimension 7, batch_size=1)", "Logistic regression, 60 × 7"),
        ("TorchProblem(1,234 params, 60,000 items, batch_size=32)", "PyTorch model, 1,234 params, 60,000 items"),
        ("Compressed(NoisyQuadratic(dimension=4), TopK(2))", "Noisy quadratic, dimension 4, compressed"),
        ("<mine.SmallProblem object at 0x7f>", "Small problem"),
        ("a problem of mine", "a problem of mine"),
    ],
)
def test_a_problem_is_named_in_words(text, words):
    assert problem_in_words(text) == words


def test_abbreviations_stay_as_they_are():
    assert [in_words(name) for name in ("MinibatchSGD", "A", "SGD")] == ["Minibatch SGD", "A", "SGD"]


@pytest.mark.parametrize(
    ("stats", "words"),
    [
        ({}, ""),
        ({"diverged": True}, "diverged"),
        ({"advice": f"{STILL_RUNNING}: …"}, "still running, step 20"),
        ({"advice": f"{WAS_KILLED} …", "interrupted": True}, "was killed at step 20"),
        ({"interrupted": True}, "stopped at step 20"),
    ],
)
def test_a_run_that_did_not_end_as_planned_is_marked(stats, words):
    run = a_run(ASYNCHRONOUS, [2, 1], **stats)
    assert state_words([run]) == words
    assert state_words([run, a_run(ASYNCHRONOUS, [2, 1])]) == (f"1 of 2: {words}" if words else "")


def test_a_run_far_above_its_initial_loss_does_not_set_the_axis():
    far, near = a_run(ASYNCHRONOUS, [2, 1e12]), a_run(ASYNCHRONOUS, [2, 3])
    assert (left_the_axis(far), left_the_axis(near)) == (True, False)
    assert state_words([far, near]) == "1 of 2: above the initial loss"
