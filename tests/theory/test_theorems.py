"""Prescriptions: the paper's formulas, written out independently, and errors that name missing constants."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nowait as nw
from nowait.theory import Constants, prescribe, prescribe_constant, prescribe_minibatch
from nowait.theory.theorems import THEOREMS

M, K = 8, 10_000
ALL = Constants(L=2.0, mu=0.1, sigma=0.5, G=3.0, B=1.5, Delta=0.7, zeta=0.0)
SETTINGS = list(THEOREMS)


def given_for(setting, **changes):
    values = ALL.known() | ({"zeta": 0.4} if setting == "heterogeneous" else {}) | changes
    return Constants(**values)


def prescribed(setting, steps=K, **changes):
    return prescribe(setting, given_for(setting, **changes), workers=M, steps=steps)


def test_theorem_1():
    p = prescribed("convex-lipschitz")
    assert p.stepsize == nw.Constant(1.5 / (3.0 * math.sqrt(K * M)))
    assert p.output == nw.UniformAverage()
    assert float(p.guarantee) == pytest.approx(3 * 3.0 * 1.5 * math.sqrt(M / K))
    factor = 3 / 2 + M / (2 * K) - 1 / (2 * M)
    assert float(p.guarantee.sharpened) == pytest.approx(factor * 3.0 * 1.5 * math.sqrt(M / K))


def test_theorem_2():
    p = prescribed("nonconvex-lipschitz")
    candidates = [
        1 / (2 * M * 2.0),
        math.sqrt(0.7 / (2.0 * 0.25 * K)),
        (0.7 / (4.0 * M**2 * 9.0 * K)) ** (1 / 3),
    ]
    assert p.stepsize.gamma == pytest.approx(min(candidates))
    assert p.output == nw.RandomIterate()
    rate = 2.0 * 0.7 / K
    assert p.guarantee.optimisation == pytest.approx(8 * M * rate + 6 * (M * rate * 3.0) ** (2 / 3))
    assert p.guarantee.noise == pytest.approx(8 * math.sqrt(rate * 0.25))


def test_theorem_3_1():
    p = prescribed("convex")
    gamma = min(1 / (4 * M * 2.0), 1.5 / (0.5 * math.sqrt(K)))
    assert p.stepsize.gamma == pytest.approx(gamma)
    for delay in (1, 5, 8, 9, 100, 5_000):
        assert p.stepsize(delay, M, 1) == pytest.approx(min(gamma, 1 / (4 * 2.0 * delay)))
    assert p.output == nw.StepsizeWeightedAverage()
    assert (p.guarantee.optimisation, p.guarantee.noise) == pytest.approx(
        (180 * M * 2.0 * 1.5**2 / K, 15 * 0.5 * 1.5 / math.sqrt(K))
    )


def test_theorem_3_2():
    p = prescribed("strongly-convex")
    log = math.log(math.e + 0.1**2 * K**2 * 1.5**2 / 0.5**2)
    gamma = min(1 / (8 * M * 2.0), 504 * log / (0.1 * K))
    for delay in (1, 5, 16, 17, 100, 5_000):
        expected = min(gamma, math.exp(-0.1 * delay / (4 * M * 2.0)) / (4 * 2.0 * delay))
        assert p.stepsize(delay, M, 1) == pytest.approx(expected)
    assert p.output == nw.StronglyConvexAverage(0.05), "exp(+(mu/2)·Σγ̂): errata E20 and E22"
    assert p.guarantee.optimisation == pytest.approx(35 * 1.5**2 / gamma * math.exp(-K * 0.1 * gamma / 504))
    assert p.guarantee.noise == pytest.approx(252 * 0.25 * gamma)


def test_the_504_of_theorem_3_2_is_a_parameter():
    long = 100_000_000
    constants = given_for("strongly-convex")
    printed, enough = (
        prescribe("strongly-convex", constants, workers=M, steps=long, log_factor=factor) for factor in (None, 84)
    )
    assert printed.stepsize.gamma == pytest.approx(6 * enough.stepsize.gamma)
    with pytest.raises(ValueError, match=r"log_factor applies to the setting 'strongly-convex' only \(Theorem 3.2\)"):
        prescribe("convex", constants, workers=M, steps=K, log_factor=84)


def test_theorem_3_3():
    p = prescribed("nonconvex")
    gamma = min(1 / (2 * M * 2.0), math.sqrt(0.7 / (K * 2.0 * 0.25)))
    for delay in (1, 4, 5, 100):
        assert p.stepsize(delay, M, 1) == pytest.approx(min(gamma, 1 / (4 * 2.0 * delay)))
    assert p.output == nw.RandomIterate()
    rate = 2.0 * 0.7 / K
    assert (p.guarantee.optimisation, p.guarantee.noise) == pytest.approx(
        (162 * M * rate, 105 * math.sqrt(rate * 0.25))
    )


def test_theorem_4_has_the_printed_stepsize_and_a_bound_that_covers_it():
    p = prescribed("heterogeneous", sigma=0.0)
    assert p.stepsize.gamma == pytest.approx(1 / (4 * M * 2.0))
    for delay in (1, 4, 5, 100):
        assert p.stepsize(delay, M, 1) == pytest.approx(min(1 / (4 * M * 2.0), 1 / (8 * 2.0 * delay)))
    assert p.guarantee.heterogeneity == pytest.approx(28 * 0.4**2)
    assert p.guarantee.optimisation == pytest.approx(356 * M * 2.0 * 0.7 / K)
    assert any("E31" in note for note in p.notes)


def test_the_stepsizes_of_theorem_3_1_can_be_doubled():
    constants = given_for("convex", sigma=0.0)
    usual, twice = (prescribe("convex", constants, workers=M, steps=K, doubled=value) for value in (False, True))
    for delay in (1, 8, 9, 100):
        assert twice.stepsize(delay, M, 1) == pytest.approx(2 * usual.stepsize(delay, M, 1))
    assert float(twice.guarantee) == pytest.approx(float(usual.guarantee.sharpened) / 2)
    with pytest.raises(ValueError, match=r"doubled applies to the setting 'convex' only \(Theorem 3.1\)"):
        prescribe("nonconvex", constants, workers=M, steps=K, doubled=True)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_guarantee_says_that_it_is_vacuous(setting):
    least = 3 * M
    few, many = (prescribed(setting, steps=steps, sigma=0.0) for steps in (least, 10**9))
    assert few.guarantee.is_vacuous
    assert "vacuous, since the error at the start is at most" in str(few)
    assert not many.guarantee.best.is_vacuous
    assert few.guarantee.start == few.guarantee.sharpened.start < math.inf


def test_the_error_at_the_start_is_the_least_that_the_constants_say():
    at_start = prescribed("convex").guarantee.start
    assert at_start == 0.7  # Delta; L·B²/2 is 2.25 and G·B is 4.5
    assert prescribed("convex", Delta=None).guarantee.start == pytest.approx(2.25)
    assert prescribed("nonconvex").guarantee.start == pytest.approx(2 * 2.0 * 0.7)
    assert prescribed("nonconvex", G=1.5).guarantee.start == pytest.approx(1.5**2)


def test_without_noise_the_noise_terms_are_gone():
    for setting in SETTINGS:
        p = prescribed(setting, sigma=0.0)
        assert p.guarantee.noise == 0
        assert p.guarantee.sharpened.noise == 0


POSITIVE = st.floats(1e-3, 1e3)


@given(
    st.sampled_from(SETTINGS),
    st.builds(dict, L=POSITIVE, sigma=st.just(0.0) | POSITIVE, G=POSITIVE, B=POSITIVE, Delta=POSITIVE),
    st.floats(1e-3, 1.0),
    st.integers(1, 1_000),
    st.integers(3, 10_000),
)
def test_the_sharpened_bound_is_never_above_the_printed_one(setting, values, condition, workers, multiple):
    values |= {"mu": condition * values["L"], "zeta": values["G"] if setting == "heterogeneous" else 0.0}
    p = prescribe(setting, Constants(**values), workers=workers, steps=multiple * workers)
    assert 0 < float(p.guarantee.sharpened) <= float(p.guarantee) * (1 + 1e-12)
    assert p.guarantee.measure == p.guarantee.sharpened.measure


@pytest.mark.parametrize("setting", SETTINGS)
def test_more_steps_or_fewer_workers_promise_more(setting):
    bounds = [float(prescribed(setting, steps=steps, sigma=0.0).guarantee) for steps in (K, 100 * K, 10_000 * K)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[-1]


NEEDED = {
    "convex-lipschitz": "G B",
    "nonconvex-lipschitz": "L G sigma Delta",
    "convex": "L B sigma",
    "strongly-convex": "L mu B sigma",
    "nonconvex": "L sigma Delta",
    "heterogeneous": "L sigma Delta zeta",
}


@pytest.mark.parametrize(
    ("setting", "name"), [(setting, name) for setting, names in NEEDED.items() for name in names.split()]
)
def test_a_missing_constant_is_named_with_a_remedy(setting, name):
    for ask in (prescribe, prescribe_minibatch):
        if ask is prescribe_minibatch and name in ("G", "zeta") and setting != "convex-lipschitz":
            continue
        with pytest.raises(ValueError, match=rf"'{setting}' needs {name} \(.*\), which these constants lack: .+"):
            ask(setting, given_for(setting, **{name: None}), workers=M, steps=K)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"setting": "convexe"}, "unknown setting 'convexe': choose one of .* did you mean 'convex'"),
        ({"constants": {"L": 1.0}}, "constants must be a nowait Constants"),
        ({"setting": ["convex"]}, r"unknown setting \['convex'\]"),
        ({"constants": nw.problems.NoisyQuadratic(3)}, r"got a problem: pass problem.constants\(\)"),
        ({"constants": Constants(L=1e-200, sigma=1.0, B=1e200)}, "exceeds floating-point range"),
        ({"workers": 0}, "workers must be an integer of at least 1, got 0"),
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"steps": 7}, "needs K ≥ M, got steps=7 for workers=8: take at least 8 steps"),
        ({"setting": "strongly-convex", "steps": 23}, "needs K ≥ 3M, got steps=23 for workers=8: take at least 24"),
        ({"constants": Constants(L=1.0, B=0.0, sigma=1.0)}, "needs B above 0 .* x_0 is already a minimiser"),
        ({"constants": Constants(L=0.0, B=1.0, sigma=1.0)}, "needs L above 0"),
        (
            {"setting": "strongly-convex", "constants": Constants(L=1.0, mu=0.0, B=1.0, sigma=1.0)},
            "needs mu above 0 .* use 'convex'",
        ),
        ({"constants": Constants(L=1.0, B=1.0, sigma=1.0, zeta=0.3)}, "zeta is 0.3: the workers' data differ"),
    ],
    ids=str,
)
def test_wrong_input_is_refused(change, message):
    arguments = {"setting": "convex", "constants": ALL, "workers": M, "steps": K} | change
    with pytest.raises((ValueError, TypeError), match=message):
        prescribe(arguments.pop("setting"), arguments.pop("constants"), **arguments)


def test_constants_that_no_function_has_are_refused():
    with pytest.raises(ValueError, match="mu must not exceed L"):
        Constants(L=1.0, mu=2.0)
    with pytest.raises(ValueError, match="sigma must be a finite number of at least 0, got -1"):
        Constants(sigma=-1)


def test_the_constant_stepsize_by_the_longest_delay_is_worse_by_the_ratio_of_the_delays():
    for setting, power in (("convex", 1), ("nonconvex", 1), ("heterogeneous", 1), ("convex-lipschitz", 0.5)):
        constants = given_for(setting, sigma=0.0)
        short, long = (
            prescribe_constant(setting, constants, workers=M, steps=K, max_delay=delay) for delay in (M, 1_000 * M)
        )
        worse = long.guarantee.optimisation / short.guarantee.optimisation
        assert 0.3 * 1_000**power < worse < 1.001 * 1_000**power, "other terms shrink with the stepsize"
        assert long.stepsize.gamma == pytest.approx(short.stepsize.gamma / 1_000**power)


def test_delays_below_the_number_of_workers_do_not_help_the_constant_stepsize():
    for setting in SETTINGS:
        few, some = (
            prescribe_constant(setting, given_for(setting), workers=M, steps=K, max_delay=delay) for delay in (1, M)
        )
        assert few.stepsize == some.stepsize
    with pytest.raises(ValueError, match="max_delay must be a finite number above 0"):
        prescribe_constant("convex", ALL, workers=M, steps=K, max_delay=0)


def test_minibatch_sgd_does_not_mind_different_data():
    constants = given_for("heterogeneous")
    assert prescribe_minibatch("heterogeneous", constants, workers=M, steps=100).guarantee.heterogeneity == 0


def test_a_prescription_prints_what_it_prescribes():
    text = str(prescribed("strongly-convex"))
    for words in ("Theorem 3.2 (strongly-convex), 8 workers, 10,000 steps", "guarantee", "sharpened", "note:", "E20"):
        assert words in text


RIVAL_PROBLEMS = {
    "convex": nw.problems.NoisyQuadratic(dimension=6, L=1.0, mu=0.0, sigma=1.0, distance=3.0),
    "strongly-convex": nw.problems.NoisyQuadratic(dimension=6, L=1.0, mu=0.3, sigma=1.0, distance=3.0),
    "nonconvex": nw.problems.NoisyQuadratic(dimension=6, L=1.0, mu=0.1, sigma=1.0, distance=3.0),
}


@pytest.mark.parametrize("setting", RIVAL_PROBLEMS)
@pytest.mark.parametrize("rival", ["minibatch", "constant"])
def test_the_guarantees_of_the_rivals_hold_and_are_not_empty(setting, rival):
    """The mean over seeds is below the bound, with a start at distance B, so that the bound is not trivial."""
    problem = RIVAL_PROBLEMS[setting]
    if rival == "minibatch":
        p = prescribe_minibatch(setting, problem.constants(), workers=4, steps=400)
        method = nw.MinibatchSGD(p.stepsize)
    else:
        p = prescribe_constant(setting, problem.constants(), workers=4, steps=4_000, max_delay=4)
        method = nw.AsynchronousSGD(p.stepsize)
    errors = []
    for seed in range(8):
        run = nw.simulate(problem, method, nw.speeds.Fixed(1.0, workers=4), steps=p.steps, output=p.output, seed=seed)
        gradient = problem.full_gradient(run.params)
        errors.append(problem.loss(run.params) if "F*" in p.guarantee.measure else gradient @ gradient)
    mean = sum(errors) / len(errors)
    assert mean <= float(p.guarantee)
    start = problem.full_gradient(problem.initial())
    before = problem.loss(problem.initial()) if "F*" in p.guarantee.measure else start @ start
    assert float(p.guarantee) < before or setting == "strongly-convex"


def test_extreme_noise_is_no_trouble_where_logarithms_serve():
    p = prescribe("strongly-convex", Constants(L=1.0, mu=0.1, B=1.0, sigma=1e-200), workers=2, steps=10**9)
    assert p.stepsize.gamma > 0


def test_assumption_1_is_named_where_it_is_needed():
    for setting in SETTINGS:
        needed = not setting.endswith("lipschitz")
        assert any("Assumption 1" in note for note in prescribed(setting).notes) == needed
        assert any("E‖∇f(x; ξ)‖²" in note for note in prescribed(setting).notes) != needed


def test_the_formulas_of_minibatch_sgd():
    rounds, variance = 400, 0.25 / M
    convex, strong, smooth, lipschitz = (
        prescribe_minibatch(setting, given_for(setting), workers=M, steps=rounds)
        for setting in ("convex", "strongly-convex", "nonconvex", "convex-lipschitz")
    )
    gamma = min(1 / (2 * 2.0), 1.5 / math.sqrt(2 * rounds * variance))
    assert convex.stepsize.gamma == pytest.approx(gamma)
    bound = (1.5**2 + gamma**2 * variance) / (2 * gamma * rounds) + gamma * variance / 2
    assert float(convex.guarantee) == pytest.approx(bound)
    gamma = min(1 / (2 * 2.0), math.log(math.e + (0.1 * rounds * 1.5) ** 2 / variance) / (0.1 * rounds))
    assert strong.stepsize.gamma == pytest.approx(gamma)
    start = (1.5**2 + gamma**2 * variance) * 0.1 / (math.exp(0.1 * gamma * rounds) - 1)
    assert float(strong.guarantee) == pytest.approx((start + gamma * variance) / (2 * (1 - 2.0 * gamma)))
    gamma = min(1 / 2.0, math.sqrt(0.7 / (2.0 * rounds * variance)))
    assert smooth.stepsize.gamma == pytest.approx(gamma)
    bound = 0.7 / (gamma * rounds) + 2.0 * gamma * variance * (1 + 1 / rounds) / 2
    assert float(smooth.guarantee) == pytest.approx(bound / (1 - 2.0 * gamma / 2))
    assert lipschitz.stepsize.gamma == pytest.approx(1.5 / (3.0 * math.sqrt(rounds)))
    for setting, largest in (("convex", 1 / 4), ("strongly-convex", 1 / 4), ("nonconvex", 1 / 2)):
        quiet = prescribe_minibatch(setting, given_for(setting, sigma=0.0), workers=M, steps=rounds)
        assert quiet.stepsize.gamma == pytest.approx(largest), "1/(2L), or 1/L"
