"""The contract of problems: every built-in problem keeps it, and every check fails on a problem that breaks it."""

import inspect
import itertools
from dataclasses import replace

import numpy as np
import pytest

import nowait as nw
from nowait.problems import NoisyQuadratic
from nowait.testing import PROBLEM_CHECKS, the_mean_gradient_is_the_slope_of_the_loss
from problem_catalogue import PROBLEMS, WRAPPED

ALL = PROBLEMS | WRAPPED
CHECKS = {check.__name__: check for check in PROBLEM_CHECKS}


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("problem", ALL)
def test_built_in_problems_keep_the_contract(problem, name):
    CHECKS[name](ALL[problem]())


@pytest.mark.parametrize("problem", [*PROBLEMS, "compressed, unbiased", "compressed, QSGD"])
def test_unbiased_gradients_have_the_slope_of_the_loss(problem):
    the_mean_gradient_is_the_slope_of_the_loss(ALL[problem]())


def test_every_problem_and_compressor_of_the_library_is_tested():
    kinds = {kind for name in nw.problems.__all__ if inspect.isclass(kind := getattr(nw.problems, name))}
    concrete = {kind for kind in kinds if not inspect.isabstract(kind)}
    examples = [make() for make in ALL.values()]
    compressors = [example.compressor for example in examples if isinstance(example, nw.problems.Compressed)]
    assert {type(example) for example in (*examples, *compressors)} == concrete


# One broken problem for each check


class Sound:
    """½‖x − 1‖² with noise from the sample, written by hand: the contract holds, and no optional member is there."""

    dimension = 4

    def initial(self):
        return np.zeros(4)

    def gradient(self, point, sample):
        return point - 1.0 + 0.1 * sample.normals(4)

    def loss(self, point):
        return float(np.sum((point - 1.0) ** 2) / 2)


class Complete(Sound):
    """The same with every optional member but compiled data, statistics and memory."""

    num_shards = 2

    def gradient_into(self, point, sample, out):
        out[:] = self.gradient(point, sample)

    def full_gradient(self, point):
        return point - 1.0

    def losses_at(self, points):
        return np.sum((points - 1.0) ** 2, axis=1) / 2

    def minimum(self):
        return np.ones(4), 0.0

    def constants(self):
        return nw.theory.Constants(L=1.0, mu=1.0, B=2.0, Delta=2.0)

    def split(self, workers):
        return type(self)()

    def prepare(self):
        pass

    def message_bytes(self, params):
        return 32

    def usual_update(self):
        return nw.Momentum(0.5)

    def write_files(self, params, folder):
        (folder / "params.txt").write_text(str(params.tolist()))


class Remembering(Sound):
    """Error feedback that holds half of everything back."""

    def gradient(self, point, sample):
        return (point - 1.0) / 2

    def gradient_with_memory(self, point, sample, memory, out):
        whole = point - 1.0 + memory
        out[:] = whole / 2
        memory[:] = whole - out


class Measuring(Sound):
    """Two trained params, one statistic and the 1."""

    num_statistics = 2

    def initial(self):
        return np.array([0.0, 0.0, 5.0, 1.0])

    def gradient(self, point, sample):
        return np.array([*(point[:2] - 1.0), 5.0 + sample.normals(1)[0], 1.0])

    def loss(self, point):
        return float(np.sum((point[:2] - 1.0) ** 2) / 2)


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("kind", [Sound, Complete, Remembering, Measuring], ids=lambda kind: kind.__name__)
def test_problems_written_by_hand_keep_the_contract(kind, name):
    CHECKS[name](kind())


class TooShort(Sound):
    dimension = 5


class OneArray(Sound):
    def __init__(self):
        self.start = np.zeros(4)

    def initial(self):
        return self.start


class Unbounded(Sound):
    def loss(self, point):
        return np.inf if point.any() else 0.0


class WrongShape(Sound):
    def gradient(self, point, sample):
        return point[:3] - 1.0


class Integers(Sound):
    def gradient(self, point, sample):
        return np.ones(4, int)


class NotFinite(Sound):
    def gradient(self, point, sample):
        return np.where(sample.worker == 4, np.nan, point)


class Counting(Sound):
    def __init__(self):
        self.calls = 0

    def gradient(self, point, sample):
        self.calls += 1
        return point - 1.0 + 1e-9 * self.calls


class Global(Sound):
    """Noise from a generator of its own: another one whenever it is asked."""

    rng = np.random.default_rng(0)

    def gradient(self, point, sample):
        return point - 1.0 + 0.1 * self.rng.normal(size=4)


class Writing(Sound):
    def gradient(self, point, sample):
        gradient = point - 1.0
        point.flags.writeable = True
        point -= 0.1 * gradient
        return gradient


class ByProcess(Sound):
    """Gradients that depend on the object and not on what is sent of it."""

    numbers = itertools.count()

    def __init__(self):
        self.key = next(self.numbers)

    def __reduce__(self):
        return type(self), ()

    def gradient(self, point, sample):
        return point - 1.0 + self.key


class HalfFilled(Complete):
    def gradient_into(self, point, sample, out):
        out[:3] = self.gradient(point, sample)[:3]


class OtherInto(Complete):
    def gradient_into(self, point, sample, out):
        out[:] = point - 1.0


class SecretMemory(Remembering):
    def __init__(self):
        self.held = np.zeros(4)

    def gradient_with_memory(self, point, sample, memory, out):
        whole = point - 1.0 + self.held
        out[:] = whole / 2
        self.held = whole - out


class OtherStart(Remembering):
    def gradient(self, point, sample):
        return point - 1.0

    def gradient_with_memory(self, point, sample, memory, out):
        super().gradient_with_memory(point, sample, memory, out)


class WrongSlope(Complete):
    def full_gradient(self, point):
        return 1.01 * (point - 1.0)


class Biased(Complete):
    def gradient(self, point, sample):
        return point - 0.98 + 0.1 * sample.normals(4)


class WrongLosses(Complete):
    def losses_at(self, points):
        return super().losses_at(points) + 0.1


class NotLowest(Complete):
    def minimum(self):
        return np.full(4, 1.5), self.loss(np.full(4, 1.5))


class OtherMinimum(Complete):
    def minimum(self):
        return np.full(4, 1.5), 0.0


class TooSmooth(Complete):
    def constants(self):
        return replace(super().constants(), L=0.9, mu=0.5)


class TooConvex(Complete):
    def constants(self):
        return replace(super().constants(), L=1.5, mu=1.2)


class TooNear(Complete):
    def constants(self):
        return replace(super().constants(), B=1.9)


class TooLow(Complete):
    def constants(self):
        return replace(super().constants(), Delta=1.9)


class TooFlat(Complete):
    def constants(self):
        return replace(super().constants(), G=0.1)


class SplitInPlace(Complete):
    def __init__(self):
        self.num_shards = 1

    def split(self, workers):
        self.num_shards = workers
        return self


class SplitInFive(Complete):
    def split(self, workers):
        other = type(self)()
        other.num_shards = 5
        return other


class WithoutTheOne(Measuring):
    def gradient(self, point, sample):
        return super().gradient(point, sample) * [1.0, 1.0, 1.0, 0.5]


class OnlyStatistics(Measuring):
    num_statistics = 4


class Piling(Complete):
    """Its data grow with each ``prepare``."""

    shift = 0.0

    def prepare(self):
        self.shift += 0.1

    def gradient(self, point, sample):
        return super().gradient(point, sample) + self.shift


class HalfABit(Complete):
    def message_bytes(self, params):
        return 0.5


class NothingSent(Complete):
    def message_bytes(self, params):
        return 0


class SharedUpdate(Complete):
    update = nw.Momentum(0.9)

    def usual_update(self):
        return self.update


class NoUpdate(Complete):
    def usual_update(self):
        return "sgd"


class NoFile(Complete):
    def write_files(self, params, folder):
        pass


class Forgetful(Sound):
    """Wraps a problem, and forgets that it is split, cannot be replayed, or writes files."""

    def __init__(self, problem):
        self.problem = problem


class Streaming(Sound):
    replayable = False


class Writer(Sound):
    def write_files(self, params, folder):
        (folder / "params.txt").write_text("")


class Loud(NoisyQuadratic):
    """Compiled code computes with another noise than the gradient."""

    def compiled_data(self):
        return super().compiled_data()._replace(noise=0.4)


class OtherLoss(Sound):
    def evaluate(self, params):
        return {"loss": self.loss(params) + 1}


class Curve(Sound):
    def evaluate(self, params):
        return {"curve": [1.0, 2.0]}


BROKEN = [
    ("the_required_members_are_there", TooShort, "has 4 entries, but the problem's dimension is 5"),
    ("initial_params_are_new_every_time", OneArray, "in a new array every time"),
    ("the_loss_is_a_finite_number", Unbounded, "the loss near the initial params is inf"),
    ("metrics_are_numbers_by_name", OtherLoss, "returns another loss than loss"),
    ("metrics_are_numbers_by_name", Curve, "for 'curve' a number, got list"),
    ("a_gradient_has_one_finite_number_per_param", WrongShape, r"the gradient has shape \(3,\), params \(4,\)"),
    ("a_gradient_has_one_finite_number_per_param", Integers, "must have float entries, got int64"),
    ("a_gradient_has_one_finite_number_per_param", NotFinite, "is not finite"),
    ("gradients_depend_on_point_and_sample_alone", Counting, "must depend on point and sample only"),
    ("gradients_depend_on_point_and_sample_alone", Global, "must depend on point and sample only"),
    ("points_are_not_written", Writing, "the point was written to"),
    ("workers_get_the_same_problem", ByProcess, "a pickled copy has other gradients"),
    ("a_replay_is_the_run", Global, "does not replay: row 0 of the trace has gradient norm"),
    ("gradient_into_is_gradient", HalfFilled, "gradient_into and gradient differ"),
    ("gradient_into_is_gradient", OtherInto, "gradient_into and gradient differ"),
    ("memory_is_all_that_a_worker_remembers", SecretMemory, "the same memory gave another gradient"),
    ("memory_is_all_that_a_worker_remembers", OtherStart, "with a memory of zero"),
    ("the_full_gradient_is_the_slope_of_the_loss", WrongSlope, "full_gradient has a slope of"),
    ("gradients_are_unbiased", Biased, "from full_gradient, the standard error is"),
    ("losses_at_is_loss", WrongLosses, "Not equal to tolerance"),
    ("the_minimum_is_the_lowest_loss", NotLowest, r"is below minimum\(\)"),
    ("the_minimum_is_the_lowest_loss", OtherMinimum, "has another loss than its params"),
    ("the_constants_hold", TooSmooth, "L is too small"),
    ("the_constants_hold", TooConvex, "mu is too large"),
    ("the_constants_hold", TooNear, "B is not"),
    ("the_constants_hold", TooLow, "Delta is less than"),
    ("the_constants_hold", TooFlat, "G is too small"),
    ("a_split_leaves_the_problem_alone", SplitInPlace, "split changed the problem itself"),
    ("a_split_leaves_the_problem_alone", SplitInFive, "has num_shards=5"),
    ("statistics_end_with_a_one", WithoutTheOne, "in a gradient must be 1"),
    ("statistics_end_with_a_one", OnlyStatistics, "nothing is trained"),
    ("prepare_can_be_called_again", Piling, "prepare changed a gradient"),
    ("message_bytes_are_a_size", HalfABit, "must return an integer, got 0.5"),
    ("message_bytes_are_a_size", NothingSent, "must be at least 1, got 0"),
    ("the_usual_update_is_new_every_time", SharedUpdate, "must make a new update every time"),
    ("the_usual_update_is_new_every_time", NoUpdate, "must return a nowait Update"),
    ("files_go_into_the_folder", NoFile, "wrote no file"),
    ("a_wrapper_passes_on_what_the_problem_can_do", lambda: Forgetful(Streaming()), "is not replayable"),
    ("a_wrapper_passes_on_what_the_problem_can_do", lambda: Forgetful(Complete()), "has num_shards=2"),
    ("a_wrapper_passes_on_what_the_problem_can_do", lambda: Forgetful(Writer()), "has write_files, this has not"),
    ("compiled_runs_are_the_reference_runs", lambda: Loud(6, sigma=0.2), "Not equal to tolerance"),
]


@pytest.mark.parametrize(
    ("name", "make", "message"), BROKEN, ids=[f"{name}-{place}" for place, (name, *_) in enumerate(BROKEN)]
)
def test_a_broken_problem_fails_its_check(name, make, message):
    with pytest.raises(AssertionError, match=message):
        CHECKS[name](make())


def test_every_check_is_shown_to_fail():
    assert {name for name, *_ in BROKEN} == set(CHECKS)


def test_gradients_of_another_loss_are_noticed():
    the_mean_gradient_is_the_slope_of_the_loss(Sound())
    with pytest.raises(AssertionError, match="gradients have a mean slope of"):
        the_mean_gradient_is_the_slope_of_the_loss(Biased())
