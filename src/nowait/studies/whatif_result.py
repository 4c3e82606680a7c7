"""The result of ``nw.whatif``: numbers, a table that fits 80 columns, and sentences."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from nowait.core import checks
from nowait.core.types import Floats
from nowait.recording.files import write_json
from nowait.theory import Speedup

WIDTH = 80
WORTH = 0.10
"""Asynchrony is worth a try if it saves at least this share of the time, at the lower end of the range.

Stale gradients cost some of it: Alibaba's job 1 would compute its gradients 10 % sooner, and in a simulation
(``nw.plan``) it does not reach the loss sooner.
"""
CLEARLY_WORTH = 0.15
"""A record with such a saving whose range begins below ``WORTH`` does not tell whether asynchrony is worth a try."""
FEW_STEPS = 10
"""A record with fewer steps gets no verdict: its range is too rough."""
BY_CHANCE = 0.01
"""Workers that are equally fast differ as much with this probability, or a higher one: no worker is called slow."""
SOME_WAITING, MOSTLY_VARYING = 0.05, 0.25
"""With this much waiting, of which less than this share comes from workers that are slow all the time, we say so."""
FIRST_OF_ALL = "the first m of n: best is all of them"
FIGURE, DATA = "whatif.png", "whatif.json"


@final
@dataclass(frozen=True)
class Alternative:
    """One way to compute the gradients of the job."""

    name: str
    """What it does, in words."""
    seconds: float
    """How long the gradients of all recorded steps take."""
    saved: float
    """The share of the synchronous job's time that is saved; below 0 if it takes longer."""
    low: float
    """The lower end of the range of ``saved``."""
    high: float
    """The upper end of the range of ``saved``."""


@final
@dataclass(frozen=True, eq=False)
class WhatIf:
    """How much sooner a recorded synchronous job would compute its gradients without waiting."""

    source: str
    """Where the record comes from."""
    steps: int
    """How many steps were compared."""
    speedup: Speedup
    """The numbers that follow from the mean times of the workers by formula."""
    slowest: str
    """The worker with the longest mean time."""
    waiting: float
    """The share of their time that workers would wait for others in synchronous steps."""
    alternatives: tuple[Alternative, ...]
    """The synchronous job first, the asynchronous one last."""
    quantiles: Floats
    """The 5 %, 50 % and 95 % quantiles of the times of each worker: a row for every worker."""
    names: tuple[str, ...]
    """What the record calls the workers."""
    notes: tuple[str, ...] = ()
    """What to know about the record."""
    doubt: str = ""
    """Why the record allows no verdict: workers are missing, or the times contain the waiting. Empty if it does."""
    chance: float | None = None
    """The probability that the means of equally fast workers differ as much; None if there are too few steps."""
    lasting: float = 0.0
    """The share of their time that workers would wait if each always took its mean time."""

    @property
    def synchronous(self) -> Alternative:
        """The job with steps that wait for all workers."""
        return self.alternatives[0]

    @property
    def asynchronous(self) -> Alternative:
        """The job without any waiting."""
        return self.alternatives[-1]

    @property
    def best_synchronous(self) -> Alternative:
        """The fastest alternative that is not asynchronous."""
        return min(self.alternatives[:-1], key=lambda one: one.seconds)

    @property
    def worth_it(self) -> bool | None:
        """True if asynchrony saves at least 10 % of the time, at the lower end of the range.

        None if the record is too short, or too irregular, to tell, or if there is a ``doubt``.
        """
        if self._is_short or self.doubt:
            return None
        if self.asynchronous.low >= WORTH:
            return True
        return None if self.asynchronous.saved >= CLEARLY_WORTH else False

    @property
    def verdict(self) -> str:
        """Whether asynchrony is worth a try, in one sentence."""
        if self.doubt:
            return f"No verdict: {self.doubt}."
        saved = f"{_percent(self.asynchronous.saved)} of the time ({_range(self.asynchronous)})"
        if self.worth_it is None:
            return f"No verdict: asynchrony would save {saved}, but {self._cannot_tell}."
        if not self.worth_it:
            return f"Not worth it: asynchrony would save {saved}, and old gradients can cost as much."
        return f"Worth a try: asynchrony would save {saved}, or less if old gradients are worth less."

    @property
    def comparison(self) -> str:
        """How much sooner the job would end with each alternative, in one sentence."""
        left_out, first = self.alternatives[1], self.alternatives[-2]
        ending = "" if first.name == FIRST_OF_ALL else f", {_sooner(first.saved)} with {first.name.partition(',')[0]}"
        return (
            f"This job would end {_sooner(self.asynchronous.saved)} asynchronously, {_sooner(left_out.saved)} with its "
            f"slowest worker left out{ending}."
        )

    @property
    def for_a_manager(self) -> str:
        """The result in one sentence without technical words."""
        if self.doubt:
            return "For a manager: this record does not show how long the machines of this job wait for each other."
        waiting = f"the machines of this job spend {_percent(self.waiting)} of their time waiting for the slowest one"
        if self.worth_it is None:
            return f"For a manager: {waiting}, but {self._cannot_tell} what a change would save."
        if not self.worth_it:
            return f"For a manager: {waiting}, which is too little to change anything."
        hours = 100 * (1 - self.asynchronous.saved)
        return (
            f"For a manager: {waiting}; without waiting, the work of 100 hours could be done in {hours:.0f}, "
            "if a trial confirms it."
        )

    @property
    def sentences(self) -> list[str]:
        """What the numbers mean."""
        if self.doubt:
            return [self.verdict, *self.notes, self.for_a_manager]
        by_formula = (
            f"From mean times alone s_max/HM = {self.speedup.speedup:.2f} (Table 2 of the paper); {self._who_is_slow}. "
            f"Workers wait {_percent(self.waiting)} of their time."
        )
        return [
            self.comparison,
            self.verdict,
            *self._simpler(),
            by_formula,
            *self._varying(),
            self._limit,
            *self.notes,
            self.for_a_manager,
        ]

    @property
    def has_slowest(self) -> bool:
        """True if the workers differ by more than chance, so that one of them can be called the slowest."""
        return self.chance is not None and self.chance < BY_CHANCE

    def as_dictionary(self) -> dict[str, Any]:
        """Return the result as text and numbers."""
        return {
            "source": self.source,
            "workers": self.speedup.workers,
            "steps": self.steps,
            "worth_it": self.worth_it,
            "speedup_by_formula": self.speedup.speedup,
            "max_delay": self.speedup.max_delay,
            "slowest": self.slowest,
            "has_slowest": self.has_slowest,
            "chance": self.chance,
            "waiting": self.waiting,
            "lasting": self.lasting,
            "doubt": self.doubt,
            "alternatives": [vars(one) for one in self.alternatives],
            "sentences": self.sentences,
        }

    def save(self, folder: str | Path) -> Path:
        """Write the numbers as JSON and the figure into a folder, which is made if it does not exist."""
        from nowait.plots import whatif

        target = Path(checks.path(folder))
        target.mkdir(parents=True, exist_ok=True)
        write_json(target / DATA, self.as_dictionary())
        whatif(self).savefig(target / FIGURE, dpi=150)
        return target

    def __str__(self) -> str:
        heading = f"{self.source}: {self.speedup.workers} workers, {self.steps:,} steps"
        return "\n".join([_wrapped(heading), "", *self._table(), "", *map(_wrapped, self.sentences)])

    def _repr_html_(self) -> str:
        from nowait.studies.notebook import html_of_whatif

        return html_of_whatif(self)

    @property
    def _who_is_slow(self) -> str:
        """Which worker is the slowest, if that is more than chance, as a clause."""
        if self.has_slowest:
            return f"worker {self.slowest} is the slowest"
        if self.chance is None:
            return "the steps are too few to tell which worker is the slowest"
        return (
            f"no worker is slower than the others by more than chance (equally fast ones differ as much with "
            f"probability {self.chance:.2g})"
        )

    def _varying(self) -> list[str]:
        """Return a sentence on waiting that changes from step to step; empty if slow workers cause enough of it."""
        lasting = self.lasting if self.has_slowest else 0.0
        if self._is_short or self.waiting < SOME_WAITING or lasting >= MOSTLY_VARYING * self.waiting:
            return []
        return [
            "The waiting varies from step to step, not from worker to worker, so the machines are about equally fast: "
            "how long a gradient takes depends on what changes with every step, probably its data (such as the length "
            "of texts). Delays that depend on the data bias asynchronous SGD. Batches that take equally long would "
            "save this waiting without asynchrony."
        ]

    @property
    def _limit(self) -> str:
        gain = self.speedup
        slow = f", those of worker {self.slowest} of about {gain.max_delay:.0f}" if self.has_slowest else ""
        return (
            f"This counts gradients, and only computing. Without waiting they have a delay of {gain.workers} steps on "
            f"average{slow}. Unless noise is what limits progress, a delayed gradient is worth less than a fresh one: "
            "the savings are upper limits. nowait plan --trace simulates the time to a loss, with --problem on your "
            "own problem."
        )

    @property
    def _is_short(self) -> bool:
        return self.steps < FEW_STEPS

    @property
    def _cannot_tell(self) -> str:
        if self._is_short:
            return f"a record of fewer than {FEW_STEPS} steps is too short to tell"
        return "the record is too short, or too irregular, to tell"

    def _table(self) -> list[str]:
        lines = [f"{'the same gradients':<41}{'seconds':>10}{'ends sooner':>13}  {'range (95 %)':>14}"]
        for one in self.alternatives:
            ends = "" if one is self.synchronous else f"{_percent(one.saved):>13}  {_range(one):>14}"
            lines.append(f"{one.name:<41}{one.seconds:>10.4g}{ends}")
        return lines

    def _simpler(self) -> list[str]:
        """Return a sentence about a synchronous alternative that saves enough too."""
        best = self.best_synchronous
        if self._is_short or best.low < WORTH:
            return []
        return [f"Without asynchrony, '{best.name}' would save {_percent(best.saved)} ({_range(best)})."]


def _wrapped(line: str) -> str:
    """Return a sentence in lines of 80 columns; no line begins with a per cent sign."""
    kept = textwrap.fill(line.replace(" %", "\N{NO-BREAK SPACE}%"), WIDTH, subsequent_indent="  ")
    return kept.replace("\N{NO-BREAK SPACE}", " ")


def _percent(share: float) -> str:
    return f"{_whole(share)} %"


def _range(one: Alternative) -> str:
    return f"{_whole(one.low)} to {_whole(one.high)} %"


def _whole(share: float) -> str:
    """Return a share in per cent, rounded, with the sign that is used in print."""
    return str(round(100 * share)).replace("-", "−")


def _sooner(share: float) -> str:
    return f"{_percent(abs(share))} {'sooner' if share >= 0 else 'later'}"
