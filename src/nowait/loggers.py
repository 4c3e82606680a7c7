"""Callbacks that write a run to experiment trackers: W&B, Trackio, MLflow and TensorBoard.

The module of a tracker is passed in, so that none of them is needed:
``callbacks=[nw.loggers.Wandb(wandb, project="mine")]``. Subclass ``Logger`` for another tracker.

>>> import nowait as nw
>>> class Printer(nw.loggers.Logger):
...     name = "the terminal"
...
...     def open(self, opening):
...         print(opening.config["method.type"])
...
...     def log(self, values, step):
...         print(step, values["workers/live"], values["gradients/total"])
...
...     def close(self, state):
...         print(state)
>>> problem = nw.problems.NoisyQuadratic(dimension=10)
>>> method, speeds = nw.AsynchronousSGD(0.1), nw.speeds.Fixed([1, 1, 10])
>>> printer = [Printer()]
>>> run = nw.simulate(
...     problem, method, speeds, steps=50, evaluate_every=25, callbacks=printer
... )
AsynchronousSGD
0 3.0 0.0
25 3.0 25.0
50 3.0 50.0
finished
"""

from nowait.recording.loggers import Logger, MLflow, Opening, TensorBoard, Trackio, Wandb

__all__ = ["Logger", "MLflow", "Opening", "TensorBoard", "Trackio", "Wandb"]
