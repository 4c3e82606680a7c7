"""The problems of the benchmark: linear models over data that ship with the package, and small PyTorch models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np

from nowait.core import Problem
from nowait.core.randomness import CounterRandom
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
    """The time in which it has to be reached."""
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


@final
@dataclass(frozen=True)
class Sizes:
    """The sizes of the PyTorch problems."""

    batch: int = 16
    evaluated: int = 256
    """The loss is that of this many training items, spread over all of them."""
    channels: tuple[int, int] = (8, 16)
    """Of the two convolutions."""
    letters: int = 24
    successors: int = 4
    """How many letters may follow a letter."""
    characters: int = 20_000
    length: int = 16
    """The transformer sees this many letters."""
    width: int = 32
    heads: int = 2
    hidden: int = 64


SIZES = Sizes()


def artificial_text() -> list[int]:
    """Return letters of an artificial language: each letter has four possible successors.

    Their probabilities are 8/15, 4/15, 2/15 and 1/15: on new text no model has a loss below 1.137 nats per letter.
    """
    random = CounterRandom(0, "language")
    successors = [random.permutation(SIZES.letters)[: SIZES.successors] for _ in range(SIZES.letters)]
    text = [0]
    while len(text) < SIZES.characters:
        draw = random.integer(15)
        place = 0 if draw < 8 else 1 if draw < 12 else 2 if draw < 14 else 3
        text.append(successors[text[-1]][place])
    return text


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
