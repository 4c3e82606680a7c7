"""LaTeX of prescriptions and certificates: every formula can be rendered, and has the numbers."""

import re

import pytest

import nowait as nw
from nowait.theory import Constants, certificate, prescribe, prescribe_rennala, prescribe_ringmaster
from nowait.theory.latex import number, rounded_up
from nowait.theory.theorems import THEOREMS

ALL = Constants(L=2.0, mu=0.1, sigma=0.5, G=3.0, B=1.5, Delta=0.7)
FORMULA = re.compile(r"\\\[(.*?)\\\]|\$(.*?)\$", flags=re.DOTALL)


def rendered(text):
    """Return the formulas of a LaTeX text; raise if one cannot be rendered, or has no end."""
    converter = pytest.importorskip("latex2mathml.converter")
    formulas = [display or inline for display, inline in FORMULA.findall(text)]
    for formula in formulas:
        mathml = converter.convert(formula.strip())
        assert "\\" not in mathml, formula
        assert formula.count("{") == formula.count("}")
    outside = FORMULA.sub("", text)
    assert not set(outside) & set("$\\{}_^"), outside
    assert text.isascii()
    return formulas


@pytest.mark.parametrize("setting", THEOREMS)
def test_a_prescription_is_a_paragraph_with_formulas(setting):
    constants = Constants(**ALL.known(), zeta=0.4) if setting == "heterogeneous" else ALL
    p = prescribe(setting, constants, workers=8, steps=10_000)
    formulas = rendered(p.latex())
    assert {"M = 8", r"K = 10\,000", "L = 2", r"\sigma = 0.5"} <= set(formulas)
    assert any(r"\gamma_k = \gamma" in formula for formula in formulas)
    assert any(r"\tilde x = " in formula for formula in formulas)
    for bound in (p.guarantee, p.guarantee.sharpened):
        assert rf"\le {number(rounded_up(float(bound)))}" in p.latex()
    assert p.latex().startswith(f"% {p.theorem} ({setting})\n")


def test_doubled_stepsizes_have_no_printed_bound():
    text = prescribe("convex", ALL, workers=8, steps=10_000, doubled=True).latex()
    rendered(text)
    assert "180" not in text
    assert "180" in prescribe("convex", ALL, workers=8, steps=10_000).latex()


@pytest.mark.parametrize("command", [r"\mathbb", r"\text"])
def test_the_packages_of_its_commands_are_named(command):
    package = {r"\mathbb": "amssymb", r"\text": "amsmath"}[command]
    assert command in prescribe("convex", ALL, workers=8, steps=10_000).latex()
    assert package in nw.theory.Prescription.latex.__doc__


def test_a_vacuous_guarantee_says_so():
    assert "This is vacuous" in prescribe("convex", ALL, workers=8, steps=10).latex()
    assert "vacuous" not in prescribe("convex", ALL, workers=8, steps=10**7).latex()


def test_other_methods_are_named_with_their_parameters():
    text = prescribe_rennala("nonconvex", ALL, workers=8, batch=12, steps=500).latex()
    rendered(text)
    assert "Then Rennala SGD, with batches of $12$ gradients and with the stepsizes" in text
    text = prescribe_ringmaster("nonconvex", ALL, workers=8, max_delay=5, steps=500).latex()
    rendered(text)
    assert "Ringmaster ASGD, with delays of at most $5$" in text
    assert r"\frac{1}{K}" in text


def test_a_guarantee_is_one_inequality():
    found = prescribe("convex", ALL, workers=8, steps=10**7).guarantee.sharpened
    rendered(f"${found.latex()}$")
    assert r"\underbrace" in found.latex()
    assert found.latex().startswith(r"\mathbb{E}\, F(\tilde x) - F^* \le ")


PROBLEM = nw.problems.NoisyQuadratic(dimension=6, L=1.0, mu=0.1, sigma=0.1, distance=2.0)


def run_with(setting, stepsize=None):
    p = prescribe(setting, PROBLEM.constants(), workers=4, steps=4_000)
    method = nw.AsynchronousSGD(p.stepsize if stepsize is None else stepsize)
    return nw.simulate(PROBLEM, method, nw.speeds.Fixed([1.0, 1.0, 1.0, 9.0]), steps=4_000, output=p.output)


@pytest.mark.parametrize("setting", ["convex", "strongly-convex", "nonconvex"])
def test_the_certificate_of_a_run_is_a_paragraph(setting):
    run = run_with(setting)
    found = certificate(run, PROBLEM.constants(), setting=setting, measured=0.0123)
    formulas = rendered(found.latex())
    assert "M = 4" in formulas
    assert any(r"S = \sum" in formula for formula in formulas)
    assert "The error that was measured is $0.0123$." in found.latex()


def test_a_run_without_a_guarantee_says_so():
    found = certificate(run_with("convex", nw.Constant(0.9)), PROBLEM.constants(), setting="convex")
    assert not found.holds
    rendered(found.latex())
    assert "there is no guarantee for this run" in found.latex()


def test_the_row_of_a_certificate_in_a_report(tmp_path):
    run = run_with("convex")
    error = PROBLEM.loss(run.params)
    found = certificate(run, PROBLEM.constants(), setting="convex", measured=error)
    row = found.prediction_row("ASGD")
    assert row == ("ASGD: E F(x̃) − F*", f"≤ {float(found.guarantee):.4g}", f"{error:.4g}")
    page = nw.report({"ASGD": run}, tmp_path / "report.html", predictions=[row]).read_text()
    assert "Theory and measurement" in page
    assert f"≤ {float(found.guarantee):.4g}" in page
    none = certificate(run_with("convex", nw.Constant(0.9)), PROBLEM.constants(), setting="convex")
    assert none.prediction_row("x")[1:] == ("no guarantee: a condition is violated", "not known")
