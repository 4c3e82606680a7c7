"""The examples run, and print the contents of their .out files."""

import os
import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from nowait.testing import METHOD_CHECKS

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PACKAGES = {"torch_lightning": "lightning", "torch_lora": "peft", "torch_trainer": "transformers"}
"""Packages of the extra ``adapters``; an example is skipped where its package is not installed."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(example, tmp_path, monkeypatch, capfd):
    """Run it as a script, but in this process, which has imported everything already."""
    if example.stem in PACKAGES:
        pytest.importorskip(PACKAGES[example.stem])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example)])
    runpy.run_path(str(example), run_name="__main__")
    assert capfd.readouterr().out == example.with_suffix(".out").read_text()


def test_an_example_is_a_script(tmp_path):
    example = ROOT / "examples" / "real_workers.py"
    command = [sys.executable, "-W", "error", str(example)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ)
    assert result.returncode == 0, result.stderr
    assert result.stdout == example.with_suffix(".out").read_text()


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    assert (names["again"].params == names["run"].params).all()
    assert (tmp_path / "runs" / "simulated" / "config.json").exists()


DOCS = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", DOCS, ids=lambda path: path.stem)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    """Run all Python blocks of a page from top to bottom."""
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        exec(code, names)


def test_the_code_of_the_how_do_i_page_compiles_and_fits_a_narrow_column():
    """Blocks marked ``py`` need a GPU, Ray or other machines: they are compiled only. ``python`` blocks run above."""
    page = (ROOT / "docs" / "how-do-i.md").read_text()
    for language, code in re.findall(r"```(python|py|bash)\n(.*?)```", page, flags=re.DOTALL):
        assert max(map(len, code.splitlines())) <= 80, code
        if language != "bash":
            compile(code, "how-do-i.md", "exec")


@pytest.mark.parametrize("page", DOCS, ids=lambda path: path.stem)
def test_the_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_method_of_the_contributing_guide_keeps_the_contract():
    blocks = re.findall(r"( *)```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.DOTALL)
    names = {}
    for _, code in blocks:
        exec(textwrap.dedent(code), names)
    for check in METHOD_CHECKS:
        names["test_my_method"](check)
