"""Guarantees during a run: they are those of the finished run, and end where no theorem applies."""

import json
import logging

import numpy as np
import pytest

import nowait as nw

PROBLEM = nw.problems.NoisyQuadratic(dimension=6, L=1.0, mu=0.1, sigma=0.1, distance=2.0)
CONSTANTS = PROBLEM.constants()
SPEEDS = nw.speeds.Fixed([1.0, 1.0, 7.0])
STEPS = 600


def simulated(method=None, setting="convex", **changes):
    p = nw.theory.prescribe(setting, CONSTANTS, workers=3, steps=STEPS)
    live = nw.LiveGuarantee(CONSTANTS, setting=setting)
    method = nw.AsynchronousSGD(p.stepsize) if method is None else method
    run = nw.simulate(PROBLEM, method, SPEEDS, steps=STEPS, output=p.output, callbacks=[live], **changes)
    return run, live


@pytest.mark.parametrize("setting", ["convex", "strongly-convex", "nonconvex"])
def test_the_guarantee_at_a_step_is_that_of_a_run_that_ends_there(setting):
    run, live = simulated(setting=setting, evaluate_every=200)
    found = run.history.metrics["guarantee"]
    assert run.history.step.tolist() == [0, 200, 400, 600]
    assert np.isnan(found[0]), "x_0 has no guarantee"
    assert live.latest == nw.theory.certificate(run, CONSTANTS, setting=setting)
    p = nw.theory.prescribe(setting, CONSTANTS, workers=3, steps=STEPS)
    for step, value in zip([200, 400, 600], found[1:], strict=True):
        short = nw.simulate(PROBLEM, nw.AsynchronousSGD(p.stepsize), SPEEDS, steps=step, output=p.output)
        assert value == pytest.approx(float(nw.theory.certificate(short, CONSTANTS, setting=setting).guarantee))
    assert found[1] > found[2] > found[3]


def test_it_is_written_with_the_other_metrics_of_real_workers(tmp_path):
    p = nw.theory.prescribe("convex", CONSTANTS, workers=2, steps=200)
    live = nw.LiveGuarantee(CONSTANTS)
    nw.train(
        PROBLEM,
        nw.AsynchronousSGD(p.stepsize),
        workers=2,
        steps=200,
        evaluate_every=100,
        output=p.output,
        folder=tmp_path / "run",
        callbacks=[live],
        progress=False,
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert "guarantee" not in lines[0]
    saved = nw.load(tmp_path / "run")
    assert lines[-1]["guarantee"] == pytest.approx(float(nw.theory.certificate(saved, CONSTANTS).guarantee))


def test_there_is_no_guarantee_while_a_condition_is_violated():
    run, live = simulated(nw.AsynchronousSGD(nw.Constant(0.9)))
    assert "guarantee" not in run.history.metrics
    assert not live.latest.holds


def test_other_methods_are_rejected_before_the_run():
    with pytest.raises(ValueError, match="known for runs of AsynchronousSGD only, got a run of MinibatchSGD"):
        simulated(nw.MinibatchSGD(0.1))


def test_it_ends_when_the_workers_change(caplog):
    faults = nw.speeds.Faults([(50.0, "leave", 0)])
    with caplog.at_level(logging.WARNING, logger="nowait"):
        run, _ = simulated(faults=faults, evaluate_every=60)
    found = run.history.metrics["guarantee"]
    assert np.isfinite(found[1])
    assert np.isnan(found[2:]).all()
    assert caplog.messages.count("no guarantee is recorded any more: worker 0 left") == 1


class Adds(nw.Callback):
    def __init__(self, found):
        self._found = found

    def extra_metrics(self, control, step):
        return {name: value(control, step) for name, value in self._found.items()} if self._found else [1.0]


def test_a_callback_adds_metrics_to_an_evaluation():
    adds = Adds({"twice": lambda control, step: 2 * step})
    run = nw.simulate(PROBLEM, nw.AsynchronousSGD(0.1), SPEEDS, steps=20, evaluate_every=10, callbacks=[adds])
    assert run.history.metrics["twice"].tolist() == [0.0, 20.0, 40.0]


@pytest.mark.parametrize(
    ("found", "error", "words"),
    [
        ({"loss": lambda control, step: 1.0}, ValueError, "cannot replace the loss"),
        ({"time": lambda control, step: 1.0}, ValueError, "a metric cannot be called 'time'"),
        ({"x": lambda control, step: None}, TypeError, "a callback's extra_metrics must return for 'x' a"),
        ({}, TypeError, "a callback's extra_metrics must return numbers by name, got list"),
    ],
)
def test_wrong_metrics_of_a_callback_are_explained(found, error, words):
    with pytest.raises(error, match=words):
        nw.simulate(PROBLEM, nw.AsynchronousSGD(0.1), SPEEDS, steps=20, callbacks=[Adds(found)])
