"""Every method compared with the golden table."""

import re
from pathlib import Path

import pytest

from golden import HEADER, TABLE, row
from nowait.testing import CATALOGUE

LINES = TABLE.read_text(encoding="utf-8").splitlines()
GOLDEN = {line[:34].strip(): line[34:].split() for line in LINES[1:]}


def test_the_golden_table_has_every_method():
    assert LINES[0] == HEADER
    assert list(GOLDEN) == list(CATALOGUE)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_method_behaves_as_the_golden_table_says(name):
    """After an intended change, run ``make golden`` and review the diff."""
    now = row(name)[34:].split()
    assert now[:4] == GOLDEN[name][:4]
    assert [float(loss) for loss in now[4:]] == pytest.approx(
        [float(loss) for loss in GOLDEN[name][4:]], rel=1e-5, nan_ok=True
    )


def test_the_docs_quote_the_golden_table():
    page = (Path(__file__).parents[2] / "docs" / "choosing.md").read_text(encoding="utf-8")
    quoted = [
        [cell.strip() for cell in line.split("|")[2:-1]]
        for line in re.findall(r"^\| `.*(?:e[-+]\d\d|refused) \|$", page, re.MULTILINE)
    ]
    rounded = [
        [*row[:4], *(f"{float(loss):.1e}".replace("nan", "refused") for loss in row[4:6])] for row in GOLDEN.values()
    ]
    assert quoted == rounded
