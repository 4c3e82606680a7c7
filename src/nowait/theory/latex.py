"""Prescriptions, guarantees and certificates as LaTeX, with their numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nowait.core import Constant, DelayAdaptive, ExponentialDelayAdaptive, Stepsize

if TYPE_CHECKING:
    from nowait.theory.certificate import RunCertificate
    from nowait.theory.constants import Constants
    from nowait.theory.guarantee import Guarantee, Prescription

MEASURES = {
    "E F(x̃) − F*": r"\mathbb{E}\, F(\tilde x) - F^*",
    "E ‖∇F(x̃)‖²": r"\mathbb{E} \left\| \nabla F(\tilde x) \right\|^2",
}
LETTERS = {"mu": r"\mu", "sigma": r"\sigma", "Delta": r"\Delta", "zeta": r"\zeta"}
PRINTED = {
    "Theorem 1": r"3 G B \sqrt{\frac{M}{K}}",
    "Theorem 2": r"\frac{8 M L \Delta}{K} + 8 \sqrt{\frac{L \Delta \sigma^2}{K}}"
    r" + 6 \left( \frac{M L \Delta G}{K} \right)^{2/3}",
    "Theorem 3.1": r"\frac{180 M L B^2}{K} + \frac{15 \sigma B}{\sqrt{K}}",
    "Theorem 3.2": r"\frac{35 B^2}{\gamma} e^{-K \mu \gamma / 504} + 252 \sigma^2 \gamma",
    "Theorem 3.3": r"\frac{162 M L \Delta}{K} + 105 \sqrt{\frac{L \Delta \sigma^2}{K}}",
    "Theorem 4": r"\frac{356 M L \Delta}{K} + 73 \sqrt{\frac{L \Delta \sigma^2}{K}} + 28 \zeta^2",
}
"""The guarantees of the paper's theorems, for the stepsizes that it prints."""
OUTPUTS = {
    "LastIterate": r"\tilde x = x_K",
    "UniformAverage": r"\tilde x = \frac{1}{K} \sum_{k=1}^{K} x_k",
    "StepsizeWeightedAverage": r"\tilde x = \frac{\sum_{k=1}^{K} \hat\gamma_k x_k}{\sum_{k=1}^{K} \hat\gamma_k}",
    "StronglyConvexAverage": r"\tilde x = \frac{\sum_{k=1}^{K} w_k x_k}{\sum_{k=1}^{K} w_k}, \quad"
    r" w_k = \hat\gamma_k \exp\left( \nu \sum_{j=1}^{k} \gamma_j \right)",
    "RandomIterate": r"\tilde x = x_k \text{ with probability } \frac{\hat\gamma_k}{\sum_{j=1}^{K} \hat\gamma_j}",
    "UniformIterate": r"\tilde x = x_k \text{ with probability } \frac{1}{K}",
}
"""By the name of the output rule. γ̂_k is the stepsize that the gradient taken at x_k gets."""
PARAMETERS = {"batch": "batches of ${}$ gradients", "m": "$m = {}$", "max_delay": "delays of at most ${}$"}


def number(value: float) -> str:
    r"""Return a number with four digits as LaTeX.

    >>> number(0.25), number(20_000), number(1.5e-7), number(float("inf"))
    ('0.25', '20\\,000', '1.5 \\times 10^{-7}', '\\infty')
    """
    if math.isinf(value):
        return r"\infty"
    if float(value).is_integer() and abs(value) < 1e9:
        return f"{int(value):,}".replace(",", r"\,")
    digits, _, power = f"{value:.4g}".partition("e")
    return rf"{digits} \times 10^{{{int(power)}}}" if power else digits


def rounded_up(value: float) -> float:
    """Return a bound with four digits that is not below the value.

    >>> rounded_up(0.123411), rounded_up(0.5)
    (0.1235, 0.5)
    """
    near = float(f"{value:.4g}")
    return near if near >= value else float(f"{near + 10.0 ** (math.floor(math.log10(value)) - 3):.4g}")


def stepsize_formula(rule: Stepsize) -> str:
    """Return the formula of a stepsize rule with its numbers."""
    if isinstance(rule, Constant):
        return rf"\gamma_k = \gamma = {number(rule.gamma)}"
    if isinstance(rule, DelayAdaptive):
        cut = "M" if rule.cut is None else number(rule.cut)
        return (
            r"\gamma_k = \gamma \min\left\{ 1, \frac{c}{\tau(k)} \right\}, \quad "
            rf"\gamma = {number(rule.gamma)}, \quad c = {cut}"
        )
    if isinstance(rule, ExponentialDelayAdaptive):
        return (
            r"\gamma_k = \gamma \min\left\{ 1, \frac{c}{\tau(k)} e^{-r \tau(k)} \right\}, \quad "
            rf"\gamma = {number(rule.gamma)}, \quad c = {number(rule.cut)}, \quad r = {number(rule.rate)}"
        )
    raise ValueError(f"no LaTeX formula is known for the stepsize {rule!r}: the theorems use other rules")


def guarantee_formula(guarantee: Guarantee, formula: str = "") -> str:
    """Return the inequality; ``formula`` is the bound in letters, if it is known."""
    terms = {
        "optimisation": guarantee.optimisation,
        "noise": guarantee.noise,
        "heterogeneity": guarantee.heterogeneity,
    }
    shown = [rf"\underbrace{{{number(value)}}}_{{\text{{{name}}}}}" for name, value in terms.items() if value]
    parts = "" if len(shown) < 2 else r" \approx " + " + ".join(shown)
    bound = rf"{formula} \le " if formula else ""
    return rf"{MEASURES[guarantee.measure]} \le {bound}{number(rounded_up(float(guarantee)))}{parts}"


def prescription_text(p: Prescription) -> str:
    """Return a paragraph: the constants, the method with its stepsize, the output and the guarantee."""
    vacuous = "" if not p.guarantee.best.is_vacuous else _vacuous(p.guarantee.best)
    sharper = p.guarantee.sharpened
    printed = PRINTED.get(p.theorem, "") if sharper is not None else ""  # doubled stepsizes have no printed bound
    lines = [
        f"% {p.theorem} ({p.setting})",
        f"Let {_sizes(p.workers, p.steps)}, {_constants(p.constants)}. Then {_method(p)} with the stepsizes",
        _display(stepsize_formula(p.stepsize)),
        "and the output",
        _display(output_formula(type(p.output).__name__, _rate(p.output))),
        "satisfies",
        _display(guarantee_formula(p.guarantee, printed)),
    ]
    if sharper is not None:
        lines += ["With the sharper constants of nowait,", _display(guarantee_formula(sharper))]
    return "\n".join([*lines, *([vacuous] if vacuous else [])])


def certificate_text(found: RunCertificate) -> str:
    """Return a paragraph: what was run, its delays and stepsizes, and the guarantee for them."""
    lines = [
        f"% {found.setting}, for the delays of one run",
        f"In a run of asynchronous SGD with {_sizes(found.workers, found.steps)}, {_constants(found.constants)},",
        f"the longest delay was ${number(found.longest_delay)}$, the largest stepsize "
        f"$\\gamma = {number(found.largest_stepsize)}$, and",
        _display(rf"S = \sum_{{k=1}}^{{K}} \hat\gamma_k = {number(found.stepsize_sum)} ."),
    ]
    if not found.holds:
        return "\n".join([*lines, "A condition of the proof does not hold, so there is no guarantee for this run."])
    lines += [
        "For these delays, the output",
        _display(output_formula(found.output, r"\frac{\mu}{2}")),
        "satisfies",
        _display(guarantee_formula(found.guarantee)),
    ]
    if found.measured is not None:
        lines.append(f"The error that was measured is ${number(found.measured)}$.")
    vacuous = [_vacuous(found.guarantee)] if found.guarantee.is_vacuous else []
    return "\n".join([*lines, *vacuous])


def output_formula(name: str, rate: str = "") -> str:
    """Return the formula of an output rule, by its name; ``rate`` is the ν of the strongly convex average."""
    formula = OUTPUTS[name]
    return rf"{formula}, \quad \nu = {rate}" if name == "StronglyConvexAverage" else formula


def _rate(output: object) -> str:
    rate = getattr(output, "mu", None)
    return "" if rate is None else number(rate)


def _sizes(workers: int, steps: int) -> str:
    return f"$M = {number(workers)}$, $K = {number(steps)}$"


def _constants(constants: Constants) -> str:
    return ", ".join(f"${LETTERS.get(name, name)} = {number(value)}$" for name, value in constants.known().items())


def _method(p: Prescription) -> str:
    if p.method == "AsynchronousSGD":
        return "asynchronous SGD"
    known = [PARAMETERS[name].format(number(value)) for name, value in p.parameters.items() if name in PARAMETERS]
    return ", with ".join([p.theorem, *known]) + (" and" if known else "")


def _vacuous(guarantee: Guarantee) -> str:
    return f"This is vacuous: the error at the start is at most ${number(guarantee.start)}$."


def _display(formula: str) -> str:
    return f"\\[\n  {formula}\n\\]"
