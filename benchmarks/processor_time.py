"""Processor seconds of all processes of a benchmark, which other work on the machine changes little."""

import os
from collections import Counter
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
ROLES = {b"nowait.engines.processes.zygote": "workers", b"ray::Host": "hosts", b"ray::": "actors of Ray's pattern"}
"""What a process does, by a part of its command."""


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
    role = next((role for text, role in ROLES.items() if text in command), "Ray's own processes")
    spent = (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
    return process, (int(fields[1]), "driver" if process == os.getpid() else role, spent)


def _is_ours(process, found):
    while process in found and process != os.getpid():
        process = found[process][0]
    return process == os.getpid()
