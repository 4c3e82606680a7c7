"""Plans as operations for a GPU: executed here with numpy, they give the losses of the compiled simulation."""

import dataclasses

import numpy as np
import pytest

import nowait as nw
from nowait.core.capabilities import Capabilities
from nowait.engines.budget import Budget, EvaluationPlan
from nowait.engines.simulator.compiled import data_of
from nowait.engines.simulator.gpu.operations import Batch, Operations, batch_of, operations_of
from nowait.engines.simulator.gpu.support import NotOnGpuError
from nowait.engines.simulator.sweep_plans import Planning, SweepParts
from nowait.speeds import Faults

LEAST_SQUARES = nw.problems.LeastSquares.random(samples=60, dimension=6, noise=0.01, seed=0)
LABELS = LEAST_SQUARES.targets > np.median(LEAST_SQUARES.targets)
SPEEDS = nw.speeds.LogNormal([0.3, 1.0, 1.0, 2.0, 7.0], sigma=0.5)
SIZES, SEEDS = np.array([0.05, 0.2, 0.4]), [0, 5]


@dataclasses.dataclass
class StepsTwice(nw.Method):
    """Applies every gradient, and sums of three once more, with weights; every fifth gradient is dropped."""

    stepsize: nw.Stepsize

    def start(self, server):
        self.totals = [server.sum(), server.sum()]
        super().start(server)

    def on_arrival(self, server, arrival):
        total = self.totals[arrival.worker % 2]
        if (server.steps + arrival.job) % 5:
            server.apply(arrival, self.stepsize.gamma)
            total.add(arrival, 0.5 + arrival.worker)
        if total.count == 3:
            server.step(total, self.stepsize.gamma, 0.1)
            total.clear()
        server.assign(arrival.worker)


def parts_of(problem, method, **budget):
    data = data_of(Capabilities.of(problem))
    make = lambda size: dataclasses.replace(method, stepsize=method.stepsize.with_size(size))  # noqa: E731
    given = Budget(budget.get("steps"), budget.get("gradients"), None)
    faults = Faults([(2.0, "leave", 1), (6.0, "join", 1)])
    return SweepParts(problem, data, make, SPEEDS, faults, given, EvaluationPlan.of(9, given, 20), problem.initial())


def lowered(parts, seed, size=SIZES[0]):
    planned = Planning(parts).plan(float(size), seed)
    return operations_of(planned.plan, planned.events, parts.data, seed)


def execute(batch: Batch, problem, run):
    """Execute one run of a batch with numpy. Returns its losses at the evaluations."""
    x, losses, plan = problem.initial(), [], batch.plans[run]
    table = np.concatenate([each.table for each in batch.operations])
    weights = np.concatenate([each.weights for each in batch.operations])
    slopes, old = np.full(batch.slots * problem.batch_size, np.nan), {}
    for begin, end in zip(batch.bounds[:-1, plan], batch.bounds[1:, plan], strict=True):
        for index in range(begin, end):
            used, entry, new, new_entry = table[index].tolist()
            if used >= 0:
                gamma = weights[index] * batch.factors[run]
                x = x - gamma * slopes[entry] * problem.features[used]
                if entry % problem.batch_size == 0:
                    x = x - gamma * problem.batch_size * problem.l2 * old[entry]
            if new >= 0:
                slopes[new_entry] = problem.slopes(
                    np.array([problem.features[new] @ x]), problem.targets[new : new + 1]
                )[0]
                old[new_entry] = x
        losses.append(problem.loss(x))
    return losses


PROBLEMS = {
    "one row": LEAST_SQUARES,
    "batch, l2, shards": nw.problems.LogisticRegression(LEAST_SQUARES.features, LABELS, batch_size=3, l2=0.1).split(5),
    "hinge": nw.problems.Hinge(LEAST_SQUARES.features, LABELS),
}
METHODS = {
    "asynchronous": nw.AsynchronousSGD(nw.DelayAdaptive(1.0)),
    "decay": nw.AsynchronousSGD(nw.StepDecay(nw.HingeDecay(1.0), every=10)),
    "ringmaster": nw.RingmasterASGD(nw.Constant(1.0), max_delay=4),
    "rennala": nw.RennalaSGD(nw.Constant(1.0), batch=3),
    "fedbuff": nw.FedBuff(nw.Constant(1.0), buffer=3),
    "minibatch": nw.MinibatchSGD(nw.Constant(1.0)),
    "steps twice": StepsTwice(nw.Constant(1.0)),
}


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_operations_give_the_losses_of_the_compiled_simulation(method, problem, caplog):
    parts = parts_of(problem, method, gradients=60)
    batch = batch_of([lowered(parts, seed) for seed in SEEDS], [SIZES / SIZES[0]] * 2)
    host = nw.sweep(
        problem,
        method,
        SPEEDS,
        stepsizes=SIZES,
        seeds=SEEDS,
        gradients=60,
        evaluate_every=9,
        faults=parts.faults,
    )
    for run in range(batch.num_runs):
        expected = host.run(run % 3, run // 3).losses[1:]
        found = execute(batch, problem, run)[: len(expected)]
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_step_and_the_next_gradient_are_one_operation():
    """So a step of asynchronous SGD with one row reads every row twice, and the params not at all."""
    operations = lowered(parts_of(LEAST_SQUARES, METHODS["ringmaster"], steps=50), seed=1)
    uses, makes = operations.table[:, 0] >= 0, operations.table[:, 2] >= 0
    assert uses.sum() == 50
    assert (uses & makes).sum() > 35
    assert (operations.weights[~uses] == 0).all()


def test_few_slots_are_enough():
    """A gradient keeps its slot until the next arrival, or until no sum holds it."""
    assert lowered(parts_of(LEAST_SQUARES, METHODS["asynchronous"], steps=200), seed=1).slots == 6
    assert lowered(parts_of(LEAST_SQUARES, METHODS["rennala"], steps=70), seed=1).slots <= 10


def test_plans_of_a_batch_have_evaluations_of_their_own():
    table = np.arange(20, dtype=np.int32).reshape(5, 4)
    first = Operations(table, np.arange(5.0), np.array([2, 4, 5]), slots=3)
    second = Operations(table[:2], np.arange(2.0), np.array([2]), slots=7)
    batch = batch_of([first, second], [np.array([1.0, 2.0, 3.0]), np.array([5.0])])
    assert batch.bounds.tolist() == [[0, 5], [2, 7], [4, 7], [5, 7]]
    assert batch.operations == [first, second]
    assert batch.num_operations == 7
    assert batch.slots == 7
    assert batch.blocks(2).tolist() == [[0, 0, 2], [0, 2, 3], [1, 3, 4]]
    assert batch.blocks(4).tolist() == [[0, 0, 3], [1, 3, 4]]


@pytest.mark.parametrize(
    ("plans", "processors", "order"),
    [
        ([0, 0, 0, 0, 1, 1, 1, 1], 1, [0, 1, 2, 3, 4, 5, 6, 7]),
        ([0, 0, 0, 0, 1, 1, 1, 1], 2, [0, 4, 1, 5, 2, 6, 3, 7]),
        ([0, 0, 0, 1, 1, 1, 2], 3, [0, 3, 6, 1, 4, 2, 5]),
        ([0, 1, 2], 5, [0, 1, 2]),
    ],
)
def test_blocks_with_the_same_plan_go_to_the_same_processor(plans, processors, order):
    batch = Batch([], np.empty(0), np.ones(len(plans)), np.array(plans, np.int32), slots=1)
    blocks = batch.blocks(1, processors)
    assert blocks[:, 1].tolist() == order
    assert blocks[:, 0].tolist() == [plans[run] for run in order]


@dataclasses.dataclass
class AlongAllGradients(nw.Method):
    """Every step is along the sum of all gradients so far; or sums are merged."""

    stepsize: nw.Stepsize
    merges: bool = False

    def start(self, server):
        self.total, self.other = server.sum(), server.sum()
        super().start(server)

    def on_arrival(self, server, arrival):
        self.total.add(arrival)
        if self.merges:
            self.other.merge(self.total, 2.0)
        server.step(self.total, self.stepsize.gamma, 0.1)
        server.assign(arrival.worker)


@pytest.mark.parametrize(("merges", "words"), [(True, "adds sums of gradients"), (False, "sums of many gradients")])
def test_sums_that_would_take_too_many_operations(merges, words):
    parts = parts_of(LEAST_SQUARES, AlongAllGradients(nw.Constant(0.01), merges), gradients=40)
    with pytest.raises(NotOnGpuError, match=f"cannot run on a GPU: .*{words}.* It runs with device='cpu'"):
        lowered(parts, seed=0)
