"""The frozen suites: which problems, clusters and methods are compared, with which budgets and seeds.

A suite never changes: anything that could change a result gets a new version, which ``tests/studies`` enforces by the
digests below.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final

import numpy as np

from nowait.core import Problem, checks
from nowait.recording import describe
from nowait.studies.bench.clusters import Cluster, clusters
from nowait.studies.bench.contenders import Contender, Scales, contenders, space_facts
from nowait.studies.bench.phase import phase_facts
from nowait.studies.bench.phase_grid import PhaseGrid
from nowait.studies.bench.problems import (
    SIZES,
    BenchProblem,
    artificial_text,
    breast_cancer,
    convolutional,
    digit_arrays,
    digits,
    language,
    least_squares,
)
from nowait.studies.bench.records import Task
from nowait.studies.bench.tuning import RANGE, Tuning

VERSION = "1"
LINEAR_SEEDS, TUNING_SEEDS = (1, 2, 3, 4, 5), (101, 102, 103, 104)
DURATIONS = 64
"""How many durations of a worker enter the digest of a suite."""


@final
@dataclass(frozen=True)
class Workload:
    """A problem on some clusters, and how methods are tuned and measured there."""

    problem: BenchProblem
    clusters: tuple[str, ...]
    tuning: Tuning
    tuning_seeds: tuple[int, ...] = TUNING_SEEDS
    seeds: tuple[int, ...] = LINEAR_SEEDS
    evaluate_seconds: float = 0.5
    cost: float = 1.0
    """The processor time of an entry, relative to others: for the time left."""


@final
@dataclass(frozen=True)
class Suite:
    """Everything that a result of the benchmark depends on, except for the code of the library."""

    name: str
    workloads: tuple[Workload, ...]
    phases: PhaseGrid
    clusters: Mapping[str, Cluster] = field(default_factory=clusters)
    methods: tuple[str, ...] = tuple(contenders(Scales(1.0, 1.0)))

    def workload(self, problem: str) -> Workload:
        """Return the workload of a problem."""
        found = [workload for workload in self.workloads if workload.problem.name == problem]
        return found[0]

    def tasks(self, methods: tuple[str, ...] | None = None) -> list[Task]:
        """Return the tasks of all methods, or of some."""
        return [
            Task(workload.problem.name, cluster, method)
            for workload in self.workloads
            for cluster in workload.clusters
            for method in (self.methods if methods is None else methods)
        ]

    def contender(self, task: Task) -> Contender:
        """Return the search space of a method of the suite."""
        return contenders(self.workload(task.problem).problem.scales)[task.method]

    def digest(self) -> str:
        """Return a hash of the whole suite: of problems, their data, clusters, search spaces, budgets and seeds."""
        facts = {
            "name": self.name,
            "version": VERSION,
            "range": RANGE,
            "workloads": [_workload_facts(workload) for workload in self.workloads],
            "phases": [asdict(self.phases), phase_facts()],
            "clusters": {name: _cluster_facts(self.clusters[name]) for name in self._used_clusters()},
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _used_clusters(self) -> list[str]:
        return sorted({cluster for workload in self.workloads for cluster in workload.clusters})


def suite(name: str) -> Suite:
    """Return a suite by its name, small or full."""
    return SUITES[checks.one_of(name, list(SUITES), "the suite")]


LEAST_SQUARES = BenchProblem(
    name="least-squares",
    title="least squares of the paper: 10,000 rows, 400 params, batches of 256",
    make=least_squares(10_000, 400, 1e-5, 256),
    target=0.028,
    seconds=200.0,
    unit=12.0,
    scales=Scales(gradient=0.14, distance=20.0),
)
SMALL_LEAST_SQUARES = BenchProblem(
    name="least-squares-small",
    title="least squares like the paper's: 2,000 rows, 50 params, batches of 32",
    make=least_squares(2_000, 50, 1e-3, 32),
    target=0.005,
    seconds=200.0,
    unit=12.0,
    scales=Scales(gradient=0.18, distance=7.5),
)
BREAST_CANCER = BenchProblem(
    name="breast-cancer",
    title="logistic regression on breast cancer data, single rows",
    make=breast_cancer,
    target=0.09,
    seconds=200.0,
    unit=3.6,
    scales=Scales(gradient=1.4, distance=4.6),
)
DIGITS = BenchProblem(
    name="digits",
    title="softmax regression on digits, batches of 8",
    make=digits,
    target=0.4,
    seconds=200.0,
    unit=1.6,
    scales=Scales(gradient=0.44, distance=15.0),
)
CONVOLUTIONAL = BenchProblem(
    name="convolutional",
    title="a convolutional network on digits, batches of 16 (PyTorch)",
    make=convolutional,
    target=0.7,
    seconds=70.0,
    unit=1.0,
    scales=Scales(gradient=0.12, distance=10.0),
    same_bits=False,
)
LANGUAGE = BenchProblem(
    name="language",
    title="a transformer on an artificial language, batches of 16 (PyTorch)",
    make=language,
    target=1.4,
    seconds=70.0,
    unit=1.5,
    scales=Scales(gradient=0.94, distance=8.0),
    same_bits=False,
)
ALL_CLUSTERS = tuple(clusters())
FEW_CLUSTERS = ("equal", "straggler-10", "alibaba-4", "spot")
TORCH_CLUSTERS = ("equal", "straggler-10", "alibaba-4")
FEW, MANY = Tuning(grid=18, rounds=3), Tuning(grid=18, rounds=4)
"""24 trials, 26 trials."""
PYTORCH = Tuning(grid=12, rounds=2)

SUITES = {
    "small": Suite(
        "small",
        tuple(
            Workload(problem, FEW_CLUSTERS, FEW, tuning_seeds=(101, 102), seeds=(1, 2, 3))
            for problem in (SMALL_LEAST_SQUARES, BREAST_CANCER, DIGITS)
        ),
        PhaseGrid(workers=(10,), ratios=(1.0, 4.0, 16.0, 64.0), noises=(0.001, 0.1, 2.0)),
    ),
    "full": Suite(
        "full",
        (
            *(Workload(problem, ALL_CLUSTERS, MANY) for problem in (BREAST_CANCER, DIGITS)),
            Workload(
                LEAST_SQUARES,
                ALL_CLUSTERS,
                MANY,
                tuning_seeds=(101,),
                seeds=(1, 2, 3),
                evaluate_seconds=2.0,
                cost=3.0,
            ),
            *(
                Workload(
                    problem,
                    TORCH_CLUSTERS,
                    PYTORCH,
                    tuning_seeds=(101,),
                    seeds=(1, 2, 3),
                    evaluate_seconds=1.0,
                    cost=10.0,
                )
                for problem in (CONVOLUTIONAL, LANGUAGE)
            ),
        ),
        PhaseGrid(
            workers=(4, 10, 40),
            ratios=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0),
            noises=(0.001, 0.01, 0.1, 1.0, 4.0),
        ),
    ),
}


def _workload_facts(workload: Workload) -> dict[str, Any]:
    problem = workload.problem
    return {
        "problem": problem.name,
        "data": data_digest(problem.make()) if problem.same_bits else torch_facts(),
        "target": problem.target,
        "seconds": problem.seconds,
        "unit": problem.unit,
        "clusters": workload.clusters,
        "tuning": [workload.tuning.grid, workload.tuning.rounds],
        "seeds": [workload.tuning_seeds, workload.seeds],
        "evaluate_seconds": workload.evaluate_seconds,
        "methods": {name: space_facts(contender) for name, contender in contenders(problem.scales).items()},
    }


def data_digest(problem: Problem) -> str:
    """Return a hash of the rows and targets of a linear model."""
    model: Any = problem
    arrays = (np.ascontiguousarray(model.features), np.ascontiguousarray(model.targets))
    words = f"{type(problem).__name__} {model.batch_size} {model.l2}".encode()
    return hashlib.sha256(words + b"".join(array.tobytes() for array in arrays)).hexdigest()


def torch_facts() -> list[Any]:
    """Return the sizes and the data of the PyTorch problems; PyTorch itself is not needed for it."""
    images, labels = digit_arrays()
    data = images.tobytes() + labels.tobytes() + bytes(artificial_text())
    return [asdict(SIZES), hashlib.sha256(data).hexdigest()]


def _cluster_facts(cluster: Cluster) -> list[Any]:
    """Return durations of every worker, a checksum of all recorded ones, and who leaves and joins."""
    speeds, faults = cluster.speeds(), cluster.faults()
    timing = speeds.timing(0)
    durations = [[timing(worker, job, 0.0)[0] for job in range(DURATIONS)] for worker in range(speeds.num_workers)]
    return [durations, describe(speeds), [list(change) for change in faults.in_order()]]
