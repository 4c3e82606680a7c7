"""Real worker processes that compute wrongly."""

import numpy as np
import pytest

import nowait as nw
from faulty import Quadratic

METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))
MANY = 10**6


class WrongProcess(Quadratic):
    """A quadratic; the process of worker 1 has other data, or rounds its gradients."""

    def __init__(self, kind):
        super().__init__(6, 0.1)
        self.kind, self.process = kind, None

    def start_worker(self, worker, num_workers):
        self.process = worker

    def gradient(self, point, sample):
        gradient = super().gradient(point, sample)
        if self.process != 1:
            return gradient
        return gradient + 1.0 if self.kind == "other data" else gradient.astype(np.float32).astype(np.float64)


def test_a_process_with_other_data_is_named_by_default(caplog):
    with pytest.raises(nw.BadWorkerError, match="worker 1 computes wrongly: ") as caught:
        nw.train(WrongProcess("other data"), METHOD, workers=3, steps=MANY, progress=False)
    assert caught.value.worker == 1


def test_a_process_that_rounds_is_named_in_an_audit(caplog):
    with pytest.raises(nw.BadWorkerError, match="worker 1 computes wrongly: "):
        nw.train(WrongProcess("rounding"), METHOD, workers=3, steps=MANY, audit=0.05, progress=False)


def test_a_resumed_run_keeps_its_audit_unless_it_is_given_another_one(tmp_path, caplog):
    problem, folder = WrongProcess("rounding"), tmp_path / "run"
    run = nw.train(problem, METHOD, workers=3, steps=50, audit=nw.Audit(0.2, tolerance=1e-3), folder=folder)
    assert run.config["audit"] == {"type": "Audit", "share": 0.2, "tolerance": 1e-3, "on_difference": "stop"}
    assert nw.resume(folder, problem, steps=100).stats.steps == 100
    with pytest.raises(nw.BadWorkerError, match="worker 1 computes wrongly: "):
        nw.resume(folder, problem, steps=MANY, audit=0.2)
