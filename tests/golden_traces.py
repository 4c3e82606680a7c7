"""Hashes of everything that small runs record, which is bit-identical on every processor and for every alignment.

``make golden`` rewrites the table after an intended change. ``python tests/golden.py --check`` compares: it needs only
the package, so that it runs on other machines as well.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import scipy.sparse

import nowait as nw
from nowait.testing import CATALOGUE

TABLE = Path(__file__).with_name("golden_traces.json")
FIXED = nw.speeds.Fixed([0.1, 0.25, 1.0, 3.0])
EXPONENTIAL = nw.speeds.Exponential([0.1, 0.25, 1.0, 3.0])
LOGNORMAL = nw.speeds.Communication(nw.speeds.LogNormal(0.3, sigma=1.5, workers=4), down=0.05, up=0.1)
PARETO = nw.speeds.Pareto(0.2, shape=1.5, workers=4)
UP_DOWN = nw.speeds.UpDown(0.3, up=2.0, down=1.0, workers=4)
ASYNCHRONOUS = nw.AsynchronousSGD(nw.DelayAdaptive(0.1))
REFERENCE = {"engine": "reference"}


def least_squares(batch_size, dimension=37):
    return nw.problems.LeastSquares.random(samples=150, dimension=dimension, noise=0.1, batch_size=batch_size, seed=3)


def single(problem):
    """Return the problem with the same data in float32."""
    return nw.problems.LeastSquares(problem.features.astype(np.float32), problem.targets, problem.batch_size)


def labelled(sparse=False):
    """Return features, dense or sparse, and classes 0, 1 and 2."""
    features = least_squares(1, dimension=21).features - 0.1
    classes = np.arange(len(features)) * 7 % 11 % 3
    features[np.arange(len(features)), classes] += 0.3
    if sparse:
        features = scipy.sparse.csr_array(np.where(features > 0.1, features, 0.0))
    return features, classes


def logistic(batch_size=1, l2=0.0, sparse=False):
    features, classes = labelled(sparse)
    return nw.problems.LogisticRegression(features, classes == 0, batch_size=batch_size, l2=l2)


def softmax(batch_size, sparse=False, dtype=np.float64):
    features, classes = labelled(sparse)
    return nw.problems.SoftmaxRegression(features.astype(dtype), classes, batch_size=batch_size, l2=0.01)


def quadratic(dimension=19):
    return nw.problems.NoisyQuadratic(dimension, L=1.0, mu=0.01, sigma=0.3).split(4, by="sorted", zeta=0.5)


def simulated(problem, method=ASYNCHRONOUS, speeds=FIXED, **options):
    return [nw.simulate(problem, method, speeds, seed=5, **({"steps": 150, "evaluate_every": 50} | options))]


def of_the_catalogue():
    """Yield a run of every method."""
    split, shared = quadratic(10), nw.problems.NoisyQuadratic(10, L=1.0, mu=0.01, sigma=0.3)
    for method in CATALOGUE.values():
        problem = shared if method.needs_shared_data else split
        yield from simulated(problem, method, EXPONENTIAL, engine="reference")


def of_wrappers():
    """Yield runs with compressed gradients and local steps."""
    for compressor in (nw.problems.TopK(3), nw.problems.RandomK(3), nw.problems.QSGD(7), nw.problems.Sign()):
        yield from simulated(nw.problems.Compressed(quadratic(), compressor), speeds=EXPONENTIAL)
    yield from simulated(nw.problems.LocalSteps(quadratic(), steps=3, stepsize=0.05), nw.FedBuff(nw.Constant(1.0)))


def of_rules():
    """Yield runs with stepsize rules, updates and outputs that use elementary functions."""
    problem = quadratic(10)
    for rule in (
        nw.ExponentialDelayAdaptive(0.1, cut=4.0, rate=0.05),
        nw.PolynomialDecay(0.1, power=0.7),
        nw.AdaDelay(2.0, 0.5),
        nw.StepDecay(nw.Constant(0.1), every=20, factor=0.7),
        nw.Cosine(nw.Constant(0.1), steps=100),
    ):
        output = nw.StronglyConvexAverage(0.1)
        yield from simulated(problem, nw.AsynchronousSGD(rule), EXPONENTIAL, output=output)
        yield from simulated(problem, nw.AsynchronousSGD(rule), EXPONENTIAL, output=output, engine="reference")
    for update in (nw.Adam(beta1=0.5), nw.AMSGrad(beta1=0.5), nw.Momentum(0.5), nw.Proximal(nw.updates.Ball(0.5))):
        yield from simulated(problem, nw.AsynchronousSGD(nw.Constant(0.02)), UP_DOWN, update=update)


CASES = {
    "least squares": lambda: simulated(least_squares(1)),
    "least squares, reference way": lambda: simulated(least_squares(1), **REFERENCE),
    "least squares, batch 8": lambda: simulated(
        least_squares(8), nw.RennalaSGD(nw.Constant(0.1), batch=3), EXPONENTIAL, output=nw.UniformAverage()
    ),
    "least squares, batch 64, reference way": lambda: simulated(least_squares(64), speeds=LOGNORMAL, **REFERENCE),
    "least squares, batch 64": lambda: simulated(least_squares(64).split(4, by="sorted"), speeds=LOGNORMAL),
    "least squares, float32": lambda: simulated(single(least_squares(1)), speeds=PARETO),
    "least squares, float32, batch 8, reference way": lambda: simulated(single(least_squares(8)), **REFERENCE),
    "logistic": lambda: simulated(logistic(), speeds=EXPONENTIAL),
    "logistic, batch 8, l2, reference way": lambda: simulated(logistic(8, l2=0.01), speeds=PARETO, **REFERENCE),
    "logistic, sparse": lambda: simulated(logistic(sparse=True), speeds=LOGNORMAL),
    "logistic, nonconvex": lambda: simulated(
        nw.problems.NonconvexLogisticRegression(labelled()[0], labelled()[1] == 0, batch_size=10), speeds=PARETO
    ),
    "softmax": lambda: simulated(softmax(10), speeds=EXPONENTIAL),
    "softmax, sparse": lambda: simulated(softmax(3, sparse=True), speeds=LOGNORMAL),
    "softmax, float32": lambda: simulated(softmax(10, dtype=np.float32)),
    "hinge": lambda: simulated(nw.problems.Hinge(labelled()[0], labelled()[1] == 0), speeds=EXPONENTIAL),
    "absolute loss": lambda: simulated(nw.problems.AbsoluteLoss(*labelled()), nw.RingmasterASGD(nw.Constant(0.1), 3)),
    "quadratic": lambda: simulated(quadratic(), speeds=LOGNORMAL),
    "quadratic, reference way": lambda: simulated(quadratic(), nw.MinibatchSGD(nw.Constant(0.1)), PARETO, **REFERENCE),
    "catalogue": of_the_catalogue,
    "wrappers": of_wrappers,
    "rules": of_rules,
}


def digest(runs):
    """Return a hash of the traces, histories and outputs of runs."""
    result = hashlib.sha256()
    for run in runs:
        trace, history = run.trace, run.history
        for array in (trace.arrivals, trace.events, history.step, history.gradients, history.time, history.loss):
            result.update(np.ascontiguousarray(array).tobytes())
        result.update(run.params.tobytes())
        result.update(np.array([trace.seconds, trace.last_norm]).tobytes())
    return result.hexdigest()


def digests(names=CASES):
    return {name: digest(CASES[name]()) for name in names}


def write():
    TABLE.write_text(json.dumps(digests(), indent=2) + "\n", encoding="utf-8")


def differing():
    """Return the names of the cases that differ from the table."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    now = digests()
    return sorted(name for name in table.keys() | now.keys() if table.get(name) != now.get(name))
