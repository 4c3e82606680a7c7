"""``nw.reproduce``: published experiments, run again in virtual time and compared with what the papers report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nowait.core import checks
from nowait.recording import Interrupted
from nowait.studies.reproduce import asynchronous_sgd, fedbuff, m_synchronous, rennala, ringleader, ringmaster
from nowait.studies.reproduce.paper import Paper
from nowait.studies.reproduce.result import CheckedClaim, Reproduction
from nowait.studies.reproduce.runs import Runs

_MODULES = (asynchronous_sgd, rennala, ringmaster, ringleader, m_synchronous, fedbuff)
PAPERS: dict[str, Paper] = {module.PAPER.name: module.PAPER for module in _MODULES}
"""The reproductions by name."""

__all__ = ["PAPERS", "CheckedClaim", "Reproduction", "paper_named", "reproduce"]


def reproduce(
    name: str,
    *,
    quick: bool = False,
    folder: str | Path | None = None,
    tell: Callable[[str], None] | None = None,
    progress: bool | None = None,
) -> Reproduction:
    """Repeat a published experiment in virtual time, and compare the result with what the paper reports.

    ``name`` is one of "asynchronous-sgd", "rennala", "ringmaster", "ringleader", "m-synchronous" and "fedbuff"; each
    takes up to three minutes on two cores. ``quick=True`` takes a few seconds: a much smaller setting, to see that it
    works. With a ``folder``, the figure and the data are written there. ``tell`` is called with a sentence after every
    method; ``progress`` None shows a bar on a terminal.

    Ctrl-C and SIGTERM raise ``nw.Interrupted`` with the runs so far as ``reproduction``, which are also saved if there
    is a ``folder``.

    >>> found = reproduce("rennala", quick=True)
    >>> len(found.claims), found.panels
    (2, ['20 workers', '100 workers'])
    """
    paper = paper_named(name)
    runs = Runs(paper.panels(quick), tell or (lambda _: None))
    signal = runs.make_all(progress)
    found = Reproduction(
        paper=paper.name,
        citation=paper.citation,
        quick=quick,
        curves=list(runs.measured),
        claims=[] if signal else _checked(paper, runs),
        differences=paper.differences,
        interrupted=bool(signal),
    )
    if folder is not None:
        found.save(folder)
    if signal:
        raise Interrupted(signal, reproduction=found)
    return found


def paper_named(name: str) -> Paper:
    """Return the paper of this name, or raise ValueError with the nearest name.

    >>> paper_named("ringmster")
    Traceback (most recent call last):
    ValueError: there is no reproduction 'ringmster': choose one of ...; did you mean 'ringmaster'?
    """
    if name in PAPERS:
        return PAPERS[name]
    nearest = checks.did_you_mean(name, PAPERS)
    raise ValueError(f"there is no reproduction {name!r}: choose one of {', '.join(PAPERS)}{nearest}")


def _checked(paper: Paper, runs: Runs) -> list[CheckedClaim]:
    checked = []
    for claim in paper.claims:
        verdict = claim.judge(runs.measured)
        checked.append(CheckedClaim(claim.source, claim.reported, verdict.got, verdict.agreement))
    return checked
