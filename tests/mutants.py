"""Breaks the code on purpose, in small ways, and counts how many of the breaks the tests notice.

    python tests/mutants.py --count 60 --seed 1 --processes 2

Every mutant is one change in one file (a comparison, a constant, an operator, a condition, a call that is left out) in
a copy of the project, and the tests of its package run there until the first failure. A mutant that survives is a test
that is missing, or a change without an effect. The same seed makes the same mutants of the same code.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 200
TESTS = {
    "core": "tests/core/test_server.py tests/core/test_in_flight.py tests/core/test_stepsizes_and_updates.py "
    "tests/core/test_randomness.py tests/test_outputs.py tests/methods tests/contracts "
    "tests/simulator/test_simulate.py tests/fleet/server tests/core/test_fuzzing.py",
    "fleet/wire": "tests/fleet/wire",
    "fleet/server": "tests/fleet/server tests/processes/test_fingerprint.py",
    "fleet": "tests/fleet tests/processes",
    "engines/simulator": "tests/simulator tests/methods/test_contract.py tests/methods/test_golden.py",
    "engines": "tests/fleet/server tests/engines tests/simulator/test_simulate.py tests/simulator/test_replay.py "
    "tests/recording tests/processes/test_fingerprint.py",
    "problems": "tests/problems tests/contracts tests/simulator/test_compiled_way.py",
    "speeds": "tests/speeds tests/simulator/test_simulate.py tests/simulator/test_compiled_way.py "
    "tests/methods/test_golden.py",
}
"""The tests that should notice a break, by the package it is in."""
OPPOSITES = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Mutant:
    """One change: the text of a file between two offsets becomes another one."""

    file: str
    start: int
    end: int
    text: str
    before: str

    def __str__(self) -> str:
        source = (ROOT / "src/nowait" / self.file).read_text(encoding="utf-8")
        line = source.count("\n", 0, len(source.encode()[: self.start].decode())) + 1
        return f"{self.file}:{line}: {self.before!r} -> {self.text!r}"


def mutated(node: ast.AST) -> ast.AST | None:
    """Return a changed copy of a node; None if there is nothing to change."""
    changed = copy.deepcopy(node)
    if isinstance(changed, ast.Compare) and type(changed.ops[0]) in OPPOSITES:
        changed.ops[0] = OPPOSITES[type(changed.ops[0])]()
    elif isinstance(changed, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(changed.op) in OPPOSITES:
        changed.op = OPPOSITES[type(changed.op)]()
    elif isinstance(changed, ast.Constant) and type(changed.value) in (int, float):
        changed.value += 1
    elif isinstance(changed, ast.Constant) and isinstance(changed.value, bool):
        changed.value = not changed.value
    elif isinstance(changed, ast.Expr) and isinstance(changed.value, ast.Call):
        return ast.Pass()
    elif isinstance(changed, ast.UnaryOp) and isinstance(changed.op, ast.Not):
        return changed.operand
    else:
        return None
    return changed


def mutants_of(file: str) -> list[Mutant]:
    """Return all mutants of a file, but for those in annotations and at the top level."""
    source = (ROOT / "src/nowait" / file).read_bytes()
    starts = [0]
    for line in source.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef) or function.name == "__repr__":
            continue
        for node in (inner for statement in function.body for inner in ast.walk(statement)):
            changed = mutated(node)
            if changed is None:
                continue
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            text = ast.unparse(ast.fix_missing_locations(changed))
            if isinstance(changed, ast.expr) and not isinstance(changed, ast.Constant):
                text = f"({text})"
            found.append(Mutant(file, start, end, text, source[start:end].decode()))
    return found


def package_of(file: str) -> str:
    """Return the entry of ``TESTS`` for a file."""
    return max((name for name in TESTS if file.startswith(name + "/")), key=len)


def choose(count: int, seed: int) -> list[Mutant]:
    """Return mutants, the same number of each package as far as possible."""
    lot, by_package = random.Random(seed), {}
    for path in sorted((ROOT / "src/nowait").rglob("*.py")):
        file = path.relative_to(ROOT / "src/nowait").as_posix()
        if any(file.startswith(name + "/") for name in TESTS) and "cluster" not in file and "processes" not in file:
            by_package.setdefault(package_of(file), []).extend(mutants_of(file))
    chosen = []
    for mutants in by_package.values():
        lot.shuffle(mutants)
    while len(chosen) < count:
        chosen += [mutants.pop() for mutants in by_package.values() if mutants]
    return chosen[:count]


def survives(mutant: Mutant, folder: Path) -> bool:
    """Run the tests on a copy with a mutant. Returns True if all pass."""
    place = folder / f"{mutant.file.replace('/', '_')}-{mutant.start}"
    shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(".git", ".venv", "site", ".hypothesis"), symlinks=True)
    target = place / "src/nowait" / mutant.file
    source = target.read_bytes()
    target.write_bytes(source[: mutant.start] + mutant.text.encode() + source[mutant.end :])
    tests = [name for name in TESTS[package_of(mutant.file)].split() if (place / name).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([f"{place}/src", f"{place}/tests", *sys.path])}
    try:
        code = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, timeout=SECONDS, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        code = -1
    shutil.rmtree(place, ignore_errors=True)
    return code == 0


def main() -> None:
    """Make the mutants, run the tests on them, and print which survived."""
    parser = argparse.ArgumentParser()
    for name, default in (("count", 60), ("seed", 1), ("processes", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    mutants = choose(options.count, options.seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ThreadPoolExecutor(options.processes) as threads,
    ):
        results = []
        for mutant, survived in zip(
            mutants, threads.map(lambda one: survives(one, Path(folder)), mutants), strict=True
        ):
            results.append(survived)
            print("SURVIVED" if survived else "caught", mutant, flush=True)  # noqa: T201
    print(f"{results.count(False)} of {len(mutants)} were caught")  # noqa: T201


if __name__ == "__main__":
    main()
