"""The API reference: every public name has a docstring and one page; formulas and code blocks of the pages."""

import re
from pathlib import Path

import pytest

import formulas
import public_names
import sources

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LONGEST_LINE = 88
"""More columns than this do not fit beside the navigation in a window of 1440 px."""


@pytest.fixture(scope="module")
def loaded():
    return sources.load()


def test_every_public_name_has_a_docstring_and_one_page(loaded):
    assert public_names.problems(loaded, public_names.entries()) == []


def test_every_entry_of_the_reference_is_an_object_with_a_docstring(loaded):
    for page, path in public_names.entries():
        assert sources.target_of(sources.member(loaded, path)).has_docstring, f"{path} on {page}"


def test_a_name_without_a_page_and_one_on_two_pages_are_reported(loaded):
    listed = [entry for entry in public_names.entries() if entry[1] != "nowait.train"]
    [missing] = public_names.problems(loaded, listed)
    assert missing.startswith("nowait.train is on no page of the reference: add the line '::: nowait.train'")
    [twice] = public_names.problems(loaded, [*public_names.entries(), ("errors.md", "nowait.stepsizes.Constant")])
    assert twice.startswith("nowait.Constant is on 2 pages of the reference (stepsizes.md, errors.md)")


def test_a_name_without_a_docstring_is_reported():
    name = public_names.PublicName(("nowait.thing",), "")
    [problem] = public_names.problems_of(name, {"nowait.thing": ["running.md"]})
    assert problem.startswith("nowait.thing has no docstring")


def test_the_public_names_are_those_of_the_modules(loaded):
    import nowait

    found = {path for name in public_names.public_names(loaded) for path in name.paths}
    for name in nowait.__all__:
        assert f"nowait.{name}" in found
    assert {"nowait.pytorch.TorchProblem", "nowait.optax.delayed", "nowait.plots.errors"} <= found


def test_a_function_is_not_taken_for_the_module_that_it_is_in(loaded):
    for path in ("nowait.train", "nowait.bench", "nowait.theory.estimate", "nowait.plots.whatif"):
        assert sources.target_of(sources.member(loaded, path)).is_function


def test_the_list_of_names_has_a_row_for_every_name(loaded):
    rows = public_names.table(loaded, public_names.entries()).splitlines()[2:]
    assert len(rows) == len(public_names.public_names(loaded))
    assert (
        "| [`nowait.Constant`](stepsizes.md#nowait.Constant)<br>`nowait.stepsizes.Constant` "
        "| [stepsizes](stepsizes.md) | The same stepsize for every gradient. |"
    ) in rows


def test_doctests_become_code_blocks_without_flags():
    fenced = sources.with_fenced_examples("Text.\n\n>>> 1 + 1  # doctest: +SKIP\n2\n>>> 3\n3\n\nMore.")
    assert "```pycon\n>>> 1 + 1\n2\n>>> 3\n3\n```" in fenced
    assert fenced.startswith("Text.")
    assert fenced.endswith("More.")


def test_a_formula_becomes_mathml():
    page = formulas.with_mathml(r'<p><span class="arithmatex">\(x_k &lt; 1\)</span></p>')
    assert page.startswith("<p><math")
    assert "<msub><mi>x</mi><mi>k</mi></msub>" in page
    assert "<mo>&#x0003C;</mo>" in page
    block = formulas.with_mathml('<div class="arithmatex">\n\\[\n\\frac12\n\\]</div>')
    assert block.startswith('<div class="formula"><math')
    assert 'display="block"' in block


def test_an_unknown_command_in_a_formula_is_an_error():
    with pytest.raises(ValueError, match="latex2mathml does not know"):
        formulas.mathml(r"\nonsense{x}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks_fit(page):
    blocks = re.findall(r"^ *```[^\n]*\n(.*?)^ *```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert [line for block in blocks for line in block.splitlines() if len(line) > LONGEST_LINE] == []


def test_the_examples_in_public_docstrings_fit(loaded):
    shown = [sources.target_of(sources.member(loaded, path)) for _, path in public_names.entries()]
    inner = [one for thing in shown for one in [thing, *thing.members.values()] if not one.is_alias and one.docstring]
    blocks = [
        block for one in inner for block in re.findall(r"```pycon\n(.*?)```", one.docstring.value, flags=re.DOTALL)
    ]
    assert [line for block in blocks for line in block.splitlines() if len(line) > LONGEST_LINE] == []
