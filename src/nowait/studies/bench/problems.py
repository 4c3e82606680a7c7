"""The problems of the benchmark: linear models over data that ship with the package, and small PyTorch models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np

from nowait.core import Problem
from nowait.problems import LeastSquares, LogisticRegression, SoftmaxRegression
from nowait.studies.bench.contenders import Scales

DATA = Path(__file__).with_name("data")


@final
@dataclass(frozen=True)
class BenchProblem:
    """A problem, the loss to reach on it, and the orders of magnitude that search spaces need.

    The numbers are part of the frozen suite, so that they do not depend on the processor that computes them.
    """

    name: str
    title: str
    make: Callable[[], Problem]
    target: float
    """The loss to reach."""
    seconds: float
    """The time in which it has to be reached; with all workers busy, as many gradients as workers per second."""
    unit: float
    """The middle of the stepsizes of methods with fresh gradients, some multiples of 1/L."""
    scales: Scales
    same_bits: bool = True
    """True if a run has the same bits on every processor; False for PyTorch models."""


def least_squares(samples: int, dimension: int, noise: float, batch_size: int) -> Callable[[], Problem]:
    """Return a function that makes the paper's least squares problem in some size."""
    return cache(
        lambda: LeastSquares.random(samples=samples, dimension=dimension, noise=noise, batch_size=batch_size, seed=42)
    )


@cache
def breast_cancer() -> Problem:
    """Logistic regression with single rows as samples: noise dominates."""
    data = _load("breast_cancer")
    return LogisticRegression(data["thousandths"] / 1000.0, 2.0 * data["benign"] - 1.0, batch_size=1, l2=1e-3)


@cache
def digits() -> Problem:
    """Softmax regression, ten classes of images of digits."""
    images, labels = digit_arrays()
    return SoftmaxRegression(images, labels, batch_size=8, l2=1e-3)


def digit_arrays() -> tuple[Any, Any]:
    """Return the images as rows of numbers from 0 to 1, and their labels."""
    data = _load("digits")
    return data["images"] / 16.0, data["labels"].astype(np.int64)


def convolutional() -> Problem:
    """Two convolutions with pooling and a linear layer, on images of digits. Needs PyTorch."""
    from nowait.studies.bench import torch_problems

    return torch_problems.convolutional()


def language() -> Problem:
    """A small causal transformer on text of an artificial language. Needs PyTorch."""
    from nowait.studies.bench import torch_problems

    return torch_problems.language()


def _load(name: str) -> dict[str, Any]:
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}
