"""A run says if it missed its target."""

import dataclasses

import pytest

import nowait as nw
from nowait.recording.target import missed_target

SPEEDS = nw.speeds.Fixed([1.0, 3.0])
METHOD = nw.AsynchronousSGD(nw.Constant(0.1))
PROBLEM = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)


def run(**options):
    return nw.simulate(PROBLEM, METHOD, SPEEDS, steps=20, **options)


@pytest.mark.parametrize(
    ("budget", "missed"),
    [
        ({}, ""),
        ({"target_loss": 1e9}, ""),
        ({"target": {"loss": 1e9}}, ""),
        ({"target_loss": 1e-9}, "loss <= 1e-09"),
        ({"target": {"loss": (">=", 1e9)}}, "loss >= 1e+09"),
        ({"target": {"loss": 1e-9}, "target_loss": 1e-8}, "loss <= 1e-08 or loss <= 1e-09"),
        ({"target": {"loss": 1e-9, "training_loss": 1.0}}, "loss <= 1e-09 and training_loss <= 1"),
        ({"target": {"loss": 1e-9}, "target_loss": 1e9}, ""),
    ],
)
def test_a_missed_target_is_in_the_text_of_the_run(budget, missed, tmp_path):
    found = run(**budget)
    loaded = nw.load(found.save(tmp_path / "run"))
    for each in (found, loaded):
        assert each.missed_target == missed
        assert (f", target {missed} missed)" in repr(each)) == bool(missed)
        assert (
            f"the target {missed} was not reached" in each._repr_html_().replace("&lt;", "<").replace("&gt;", ">")
        ) == bool(missed)


def test_a_target_that_was_reached_before_the_last_evaluation_is_not_missed():
    found = nw.simulate(PROBLEM, METHOD, SPEEDS, steps=200, evaluate_every=1)
    lowest = float(found.history.loss.min())
    assert lowest < found.history.loss[-1]
    assert missed_target({"budget": {"target_loss": lowest}}, found.history) == ""


def test_a_run_that_diverged_or_was_interrupted_says_that_instead():
    found = run(target_loss=1e-9)
    diverged = dataclasses.replace(found, stats=dataclasses.replace(found.stats, diverged=True))
    assert repr(diverged).endswith(", diverged)")
    interrupted = dataclasses.replace(found, stats=dataclasses.replace(found.stats, interrupted=True))
    assert "target" not in repr(interrupted)


@pytest.mark.parametrize(
    "config", [{}, {"budget": None}, {"budget": {"target": 3}}, {"budget": {"target_loss": "x", "target": {"a": 1}}}]
)
def test_a_config_without_a_target_has_none_to_miss(config):
    assert missed_target(config, run().history) == ""
