"""Callbacks for logging: on_checkpoint, TensorBoard, and the step of a loss."""

import sys

import pytest

import nowait as nw

PROBLEM = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)
METHOD = nw.AsynchronousSGD(nw.Constant(0.1))
SPEEDS = nw.speeds.Fixed([1.0, 2.0])


def test_every_checkpoint_is_told_with_its_folder(tmp_path):
    class Listener(nw.Callback):
        def __init__(self):
            self.heard = []

        def on_checkpoint(self, control, path):
            assert (path / "state.json").exists() or any(path.iterdir())
            self.heard.append((control.steps, path.name))

    listener = Listener()
    nw.train(PROBLEM, METHOD, workers=2, steps=40, folder=tmp_path / "run", checkpoint_every=10, callbacks=[listener])
    assert [name for _, name in listener.heard] == [f"step_{step}" for step in (0, 10, 20, 30, 40)]
    assert [step for step, _ in listener.heard] == [0, 10, 20, 30, 40]


def test_a_loss_comes_with_its_step():
    seen = []

    class Listener(nw.Callback):
        def on_evaluate(self, control):
            seen.append((control.loss_step, control.loss))

    run = nw.simulate(PROBLEM, METHOD, SPEEDS, steps=50, evaluate_every=10, callbacks=[Listener()])
    assert seen == list(zip(run.history.step.tolist(), run.history.loss.tolist(), strict=True))


def test_tensorboard_gets_the_losses(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Scored(nw.problems.NoisyQuadratic):
        def evaluate(self, params):
            return {"score": -self.loss(params)}

    logger, problem = nw.TensorBoard(tmp_path / "logs"), Scored(dimension=3, sigma=0.1)
    run = nw.simulate(problem, METHOD, SPEEDS, steps=50, evaluate_every=10, callbacks=[logger])
    logger.close()
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    losses = events.Scalars("loss")
    assert [event.step for event in losses] == run.history.step.tolist()
    assert [event.value for event in losses] == pytest.approx(run.history.loss.tolist(), rel=1e-6)
    assert {"loss", "score", "workers", "gradients", "seconds"} <= set(events.Tags()["scalars"])
    assert [event.value for event in events.Scalars("score")] == pytest.approx((-run.history.loss).tolist(), rel=1e-6)
    assert [event.value for event in events.Scalars("stepsize")] == pytest.approx([0.1] * 5)
    assert [event.value for event in events.Scalars("delay")] == pytest.approx(
        [run.trace.delay[:count].mean() for count in run.history.gradients.tolist()[1:]]
    )
    assert [event.step for event in events.Scalars("seconds")] == run.history.step.tolist()


def test_without_its_package_tensorboard_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        nw.simulate(PROBLEM, METHOD, SPEEDS, steps=5, callbacks=[nw.TensorBoard(tmp_path)])


def test_labels_are_kept_with_a_run(tmp_path):
    run = nw.simulate(PROBLEM, METHOD, SPEEDS, steps=5, labels={"why": "to see", "try": 3})
    run.save(tmp_path / "run")
    assert nw.load(tmp_path / "run").config["labels"] == {"why": "to see", "try": 3}
