"""What the shell offers after Tab: names of methods, updates, schedules, engines and so on, and the folders of runs.

Nothing is imported here that ``import nowait`` does not import. Each function takes the beginning of a word and returns
the words that begin with it. Options that are not completed here get files from the shell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

Complete = Callable[[str], list[str]]

MOST_FOLDERS = 200


def names(*known: str) -> Complete:
    """Return a completion with fixed names."""
    return lambda incomplete: _beginning(incomplete, known)


def method_names(incomplete: str) -> list[str]:
    """Complete a method; after a colon, its parameters: ``ringmaster:max_d`` to ``ringmaster:max_delay=``."""
    from nowait.cli.methods import known_methods, parameters

    kinds = known_methods()
    return _with_parameters(incomplete, kinds, lambda name: [*parameters(kinds[name]), "stepsize"])


def update_name(incomplete: str) -> list[str]:
    """Complete an update; after a colon, its parameters."""
    from nowait.cli.updates import UPDATES, update_parameters

    return _with_parameters(incomplete, UPDATES, lambda name: [*update_parameters(UPDATES[name]), "scale"])


def schedule_names(incomplete: str) -> list[str]:
    """Complete the last schedule of a list with commas between them, or its first parameter."""
    from nowait.cli.schedules import SCHEDULES, schedule_parameters

    before, comma, last = incomplete.rpartition(",")
    found = _with_parameters(last, SCHEDULES, lambda name: schedule_parameters(SCHEDULES[name]))
    return [f"{before}{comma}{text}" for text in found]


def update_names(incomplete: str) -> list[str]:
    """Complete the last update of a list with commas between them."""
    from nowait.cli.updates import UPDATES

    before, comma, last = incomplete.rpartition(",")
    return _beginning(incomplete, (f"{before}{comma}{name}" for name in UPDATES if name.startswith(last)))


def audit_words(incomplete: str) -> list[str]:
    """Complete ``off`` or, after the share and a colon, the parameters of an audit and what it does."""
    from nowait.cli.texts import AUDIT_PARAMETERS, OFF, ON_DIFFERENCE

    share, colon, rest = incomplete.partition(":")
    if not colon:
        return _beginning(incomplete, (OFF,))
    before, equals, _ = incomplete.rpartition("on_difference=")
    if equals and "," not in incomplete[len(before) :]:
        return _beginning(incomplete, (f"{before}{equals}{name}" for name in ON_DIFFERENCE))
    return _parameter(share, rest, AUDIT_PARAMETERS)


def listed_names(incomplete: str) -> list[str]:
    """Complete a method, stepsize rule, update or schedule."""
    from nowait.cli.listings import everything

    return _beginning(incomplete, (one.name for one in everything()))


def setting_names(incomplete: str) -> list[str]:
    """Complete a setting of ``nowait certify``."""
    from nowait.studies.assumptions import PROBLEMS

    return _beginning(incomplete, PROBLEMS)


def delay_patterns(incomplete: str) -> list[str]:
    """Complete a delay pattern of ``nowait certify``."""
    from nowait.studies.certify import HARD
    from nowait.studies.patterns import PATTERNS

    return _beginning(incomplete, (HARD, *PATTERNS))


def tolerance_patterns(incomplete: str) -> list[str]:
    """Complete a delay pattern of ``nowait tolerance``."""
    from nowait.studies.tolerance_patterns import PATTERNS

    return _beginning(incomplete, PATTERNS)


def paper_names(incomplete: str) -> list[str]:
    """Complete a paper of ``nowait reproduce``."""
    from nowait.studies.reproduce import PAPERS

    return _beginning(incomplete, PAPERS)


def bench_problems(incomplete: str) -> list[str]:
    """Complete a problem of the benchmark."""
    from nowait.studies.bench.suite import SUITES

    every = (workload.problem.name for suite in SUITES.values() for workload in suite.workloads)
    return _beginning(incomplete, dict.fromkeys(every))


def run_folders(incomplete: str) -> list[str]:
    """Complete the folder of a run: here, in ``runs`` or below the folder that was typed."""
    place, slash, _ = incomplete.rpartition("/")
    top = Path(place or ("/" if slash else "."))
    found = (path.parent for depth in ("*", "*/*") for path in top.glob(f"{depth}/config.json"))
    texts = (str(path) for path, _ in zip(found, range(MOST_FOLDERS), strict=False))
    return _beginning(incomplete, sorted(texts))


def _with_parameters(incomplete: str, known: Iterable[str], parameters: Callable[[str], Iterable[str]]) -> list[str]:
    """Complete a name; after a colon, the parameters of the name."""
    name, colon, rest = incomplete.partition(":")
    if not colon:
        return _beginning(incomplete, known)
    return _parameter(name, rest, parameters(name)) if name in known else []


def _parameter(name: str, rest: str, known: Iterable[str]) -> list[str]:
    """Complete the last parameter of a method or update, unless its value has been begun."""
    before, comma, last = rest.rpartition(",")
    if "=" in last:
        return []
    given = [item.partition("=")[0] for item in before.split(",")]
    return [f"{name}:{before}{comma}{one}=" for one in known if one.startswith(last) and one not in given]


def _beginning(incomplete: str, known: Iterable[str]) -> list[str]:
    return [name for name in known if name.startswith(incomplete)]
