"""A script that trains or resumes and kills its own process, the server, at a point chosen by the test."""

import json
import os
import signal
import sys

import nowait as nw
from faulty import Faulty

METHODS = {
    "asynchronous": nw.AsynchronousSGD(nw.DelayAdaptive(0.05)),
    "rennala": nw.RennalaSGD(nw.Constant(0.1), batch=3),
    "fedbuff": nw.FedBuff(nw.Constant(0.1), buffer=4),
    "auto": nw.Auto(0.05),
    "nesterov": nw.DelayedNesterov(0.05, every=4),
    "random": nw.RandomAssignment(nw.Constant(0.03)),
}


def problem_of(plan):
    return Faulty({tuple(place): "kill" for place in plan.get("kills", [])})


def options_of(plan):
    return {"output": nw.UniformAverage(), "update": nw.Momentum(0.3)} if plan.get("parts") else {}


class Die(nw.Callback):
    """Kills this process after ``steps`` steps; with ``say``, prints a line first and waits for a line on stdin."""

    def __init__(self, steps, say):
        self.steps, self.say = steps, say

    def on_step(self, control):
        if control.steps >= self.steps:
            if self.say:
                print("about to die", flush=True)  # noqa: T201
                input()
            os.kill(os.getpid(), signal.SIGKILL)


def die_while_writing(number):
    """Kill this process just before it completes its checkpoint with this number."""
    rename, count = os.rename, 0

    def dying_rename(source, target):
        nonlocal count
        count += "step_" in str(target)
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)

    os.rename = dying_rename


def main(plan):
    if "die_while_writing" in plan:
        die_while_writing(plan["die_while_writing"])
    callbacks = [Die(plan["die_at"], plan.get("say"))] if "die_at" in plan else []
    if plan.get("resume"):
        nw.resume(plan["folder"], problem_of(plan), callbacks=callbacks)
        return
    nw.train(
        problem_of(plan),
        METHODS[plan["method"]],
        workers=3,
        engine=plan.get("engine", "processes"),
        steps=plan["steps"],
        seed=7,
        folder=plan["folder"],
        checkpoint_every=plan["every"],
        callbacks=callbacks,
        **options_of(plan),
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
