"""Processor seconds of all processes of a benchmark, which other work on the machine changes little."""

import os
import statistics
from collections import Counter
from pathlib import Path
from typing import NamedTuple

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
ROLES = {b"nowait.fleet.host.zygote": "workers", b"ray::Host": "hosts", b"ray::": "actors of Ray's pattern"}
"""What a process does, by a part of its command."""
ROLE_NAMES = ("driver", *ROLES.values(), "Ray's own processes")


class Speed(NamedTuple):
    """How fast something was, and the milliseconds of processor time that each step took, by role."""

    steps_per_second: float
    milliseconds: dict

    @property
    def total(self):
        """The milliseconds of processor time that a step took in all processes."""
        return sum(self.milliseconds.values())


def compare(what, baseline, ours, rounds):
    """Measure all in alternating rounds; print medians of the speeds, and of the ratios to the baseline."""
    found = [{"baseline": baseline()} | {name: measure() for name, measure in ours.items()} for _ in range(rounds)]
    print(f"{what}: Ray's pattern {_summary([row['baseline'] for row in found])}")
    for name in ours:
        rate, time = (
            statistics.median(ratio(row[name], row["baseline"]) for row in found)
            for ratio in (
                lambda one, base: one.steps_per_second / base.steps_per_second,
                lambda one, base: base.total / one.total,
            )
        )
        print(f"    {name:24s} {_summary([row[name] for row in found])}")
        print(f"    {'':24s} ratio {rate:.1f} in steps per second, {time:.1f} in processor time", flush=True)


def _summary(speeds):
    """Return the median speed, and the processor time per step by role, in words."""
    rate, total = (statistics.median(values) for values in zip(*[(one[0], one.total) for one in speeds], strict=True))
    roles = {role: statistics.median(one.milliseconds.get(role, 0.0) for one in speeds) for role in ROLE_NAMES}
    parts = ", ".join(f"{role} {spent:.3g}" for role, spent in roles.items() if spent > total / 100)
    return f"{rate:,.0f} steps/s; {total:.3g} ms of processor time per step ({parts})"


def used():
    """Return the processor seconds of this process and its descendants so far, by role."""
    found = dict(filter(None, map(_read, Path("/proc").glob("[0-9]*"))))
    seconds = Counter()
    for process, (_, role, spent) in found.items():
        if _is_ours(process, found):
            seconds[role] += spent
    return seconds


def per_step(before, after, steps):
    """Return the milliseconds of processor time per step between two results of ``used``, by role."""
    return {role: 1e3 * (seconds - before[role]) / steps for role, seconds in sorted(after.items())}


def _read(folder):
    """Return the number of a process with its parent, role and processor seconds; None if it has ended."""
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        command = (folder / "cmdline").read_bytes()
    except OSError:
        return None
    process = int(folder.name)
    role = next((role for text, role in ROLES.items() if text in command), ROLE_NAMES[-1])
    spent = (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    return process, (int(fields[1]), ROLE_NAMES[0] if process == os.getpid() else role, spent)


def _is_ours(process, found):
    while process in found and process != os.getpid():
        process = found[process][0]
    return process == os.getpid()
