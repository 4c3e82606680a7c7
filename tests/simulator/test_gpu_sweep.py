"""Sweeps on a GPU. Where there is none, Triton interprets the kernel on the CPU, which takes milliseconds per step."""

import logging
from importlib.util import find_spec

import numpy as np
import pytest
from typer.testing import CliRunner

import nowait as nw
from nowait.cli.main import app
from nowait.engines.budget import Budget
from nowait.engines.simulator.gpu import device, support
from nowait.engines.simulator.gpu import sweep as gpu_sweep
from nowait.engines.simulator.gpu.execution import DeviceExecution, DeviceProblem, LaunchShape
from nowait.engines.simulator.gpu.losses import mark_diverged
from nowait.engines.simulator.gpu.support import NotOnGpuError

torch = pytest.importorskip("torch")
HAS_GPU = torch.cuda.is_available()
INTERPRETER_VERSION = "3.9"
"""Interpreters of older versions do not work with NumPy 2.4."""

PROBLEM = nw.problems.LeastSquares.random(samples=40, dimension=5, noise=0.01, seed=0)
LABELS = PROBLEM.targets > np.median(PROBLEM.targets)
LOGISTIC = nw.problems.LogisticRegression(PROBLEM.features, LABELS, batch_size=2, l2=0.1).split(3)
SPEEDS = nw.speeds.LogNormal([0.3, 1.0, 2.0], sigma=0.5)
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(1.0))
FEW = {"stepsizes": [0.05, 0.2, 1e200], "seeds": [0, 5], "steps": 8, "evaluate_every": 3}


@pytest.fixture
def triton(monkeypatch):
    """Triton, with its interpreter if there is no GPU."""
    if not HAS_GPU:
        monkeypatch.setenv(device.INTERPRETER, "1")
        pytest.importorskip("triton", minversion=INTERPRETER_VERSION)
    return pytest.importorskip("triton")


@pytest.fixture
def no_interpreter(monkeypatch):
    monkeypatch.delenv(device.INTERPRETER, raising=False)


def check_against_the_cpu(problem, method, rtol=1e-12, speeds=SPEEDS, **options):
    options = FEW | options
    with np.errstate(all="ignore"):
        found = nw.sweep(problem, method, speeds, device="cuda", **options)
    expected = nw.sweep(problem, method, speeds, **options)
    assert found.engine == "gpu"
    assert np.array_equal(found.diverged, expected.diverged)
    for name in ("step", "gradients", "time"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_allclose(found.curves, expected.curves, rtol=rtol)
    return found


# The kernel


def test_losses_are_those_of_the_cpu_and_runs_may_diverge(triton):
    assert check_against_the_cpu(PROBLEM, METHOD).diverged.sum() == 2


def test_batches_with_a_regulariser(triton):
    check_against_the_cpu(LOGISTIC, METHOD, stepsizes=[0.05, 0.2], seeds=[3])


def test_a_single_worker_uses_what_was_just_stored(triton):
    one_row = nw.problems.LogisticRegression(PROBLEM.features, LABELS, l2=0.1)
    check_against_the_cpu(one_row, METHOD, speeds=nw.speeds.Fixed([1.0]), stepsizes=[0.05, 0.2], seeds=[3])


def test_sums_of_gradients(triton):
    check_against_the_cpu(PROBLEM, nw.RennalaSGD(nw.Constant(1.0), batch=2), stepsizes=[0.05, 0.2], seeds=[3])


def test_float32(triton):
    narrow = nw.problems.AbsoluteLoss(PROBLEM.features.astype(np.float32), PROBLEM.targets.astype(np.float32))
    check_against_the_cpu(narrow, METHOD, rtol=1e-5, stepsizes=[0.05, 0.2], seeds=[3])


def test_every_stepsize_may_have_its_own_plan_and_batches_are_limited(triton, monkeypatch):
    monkeypatch.setattr(gpu_sweep, "RUNS_TOGETHER", 2)
    monkeypatch.setattr(gpu_sweep, "MOST_QUEUED", 1)
    launches = []
    original = DeviceExecution.run_to
    monkeypatch.setattr(DeviceExecution, "run_to", lambda self, place: launches.append(self) or original(self, place))
    make = lambda size: nw.RingmasterASGD(nw.Constant(size), max_delay=1 if size == 0.1 else 3)  # noqa: E731
    check_against_the_cpu(PROBLEM, make, stepsizes=[0.05, 0.1], seeds=[1, 2], steps=5)
    assert len(set(launches)) == 2, "two plans in each batch"


def test_plans_are_made_ahead_if_the_host_has_memory_for_them(triton, monkeypatch):
    """One plan takes more than it may; the next one is made before the GPU gets the first."""
    monkeypatch.setattr(gpu_sweep, "HOST_BYTES", 1)
    monkeypatch.setattr(gpu_sweep, "RUNS_TOGETHER", 1)
    order, prepare, start = [], gpu_sweep._Work._prepare, gpu_sweep._Work._start
    monkeypatch.setattr(
        gpu_sweep._Work, "_prepare", lambda self, job: order.append(f"plan {job.seed}") or prepare(self, job)
    )
    monkeypatch.setattr(
        gpu_sweep._Work, "_start", lambda self, jobs: order.append(f"start {jobs[0].job.seed}") or start(self, jobs)
    )
    check_against_the_cpu(PROBLEM, METHOD, stepsizes=[0.1], seeds=[0, 1, 2], steps=2, evaluate_every=2)
    assert order.index("plan 2") > order.index("start 0")
    assert order.index("plan 1") < order.index("start 1")


@pytest.mark.parametrize(
    ("budget", "plans"),
    [
        (Budget(steps=1_000), 10_737),
        (Budget(gradients=10_000_000), 1),
        (Budget(steps=1_000_000, seconds=3.0), 10),
        (Budget(seconds=3.0), 1),
    ],
)
def test_how_many_plans_are_made_at_a_time(budget, plans):
    assert gpu_sweep.most_planned(budget) == plans


def test_blocks_of_several_runs(triton, monkeypatch):
    """The last block has one run less."""
    monkeypatch.setattr(LaunchShape, "of", lambda *arguments: LaunchShape(runs=2, warps=1))
    hinge = nw.problems.Hinge(PROBLEM.features, LABELS)
    check_against_the_cpu(hinge, METHOD, stepsizes=[0.05, 0.2, 0.4], seeds=[3])


def test_a_folder_keeps_runs_of_both_devices(triton, tmp_path):
    options = {"steps": 4, "evaluate_every": 2, "folder": tmp_path / "sweep"}
    assert nw.sweep(PROBLEM, METHOD, SPEEDS, stepsizes=[0.1], device="cuda", **options).engine == "gpu"
    both = nw.sweep(PROBLEM, METHOD, SPEEDS, stepsizes=[0.1, 0.2], **options)
    assert both.engine == "compiled"
    assert nw.Sweep.load(tmp_path / "sweep").engine == "compiled"


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="there is no CUDA GPU")
@pytest.mark.parametrize("dimension", [400, 1500])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("runs", [1, 2, 4])
def test_many_runs_on_a_gpu(dimension, dtype, runs, monkeypatch, triton):
    warps = LaunchShape.of(dimension, np.dtype(dtype).itemsize, False, 1, 1).warps
    monkeypatch.setattr(LaunchShape, "of", lambda *arguments: LaunchShape(runs, warps))
    data = nw.problems.LeastSquares.random(samples=1000, dimension=dimension, seed=0)
    problem = nw.problems.LeastSquares(data.features.astype(dtype), data.targets.astype(dtype))
    options = {"stepsizes": np.geomspace(0.01, 0.3, 30), "seeds": 4, "steps": 5_000}
    check_against_the_cpu(problem, METHOD, rtol=1e-9 if dtype == np.float64 else 1e-3, **options)


# Losses


@pytest.mark.parametrize(
    "problem",
    [
        PROBLEM,
        LOGISTIC,
        nw.problems.Hinge(PROBLEM.features, LABELS),
        nw.problems.AbsoluteLoss(PROBLEM.features, PROBLEM.targets).split(3),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_losses_over_all_rows(problem, monkeypatch):
    monkeypatch.setattr("nowait.engines.simulator.gpu.losses.MOST_NUMBERS", 150)
    points = np.random.default_rng(0).normal(size=(6, 5)) * 30
    there = DeviceProblem(problem.compiled_data(), problem.shards.weights, points.dtype, torch.device("cpu"))
    found = there.losses_at(there.padded(points)).numpy()
    np.testing.assert_allclose(found, problem.losses_at(points), rtol=1e-12)


def test_runs_that_have_diverged_stay_so():
    points, alive = torch.ones(5, 2), torch.tensor([True, True, True, True, False])
    points[1, 1] = torch.nan
    losses = torch.tensor([3e20, 1.0, 5e20, torch.nan, 1.0], dtype=torch.float64)
    mark_diverged(losses, points, -4.0, alive)
    assert alive.tolist() == [True, False, False, False, False]
    assert losses.tolist() == [3e20, np.inf, np.inf, np.inf, np.inf]


# How runs are distributed


@pytest.mark.parametrize(
    ("width", "itemsize", "penalised", "num_runs", "runs_per_plan", "shape"),
    [
        (16, 4, False, 10, 10, LaunchShape(1, 1)),
        (400, 4, False, 4096, 32, LaunchShape(4, 1)),
        (400, 4, False, 1024, 32, LaunchShape(1, 1)),
        (400, 8, False, 1024, 32, LaunchShape(2, 1)),
        (400, 4, True, 4096, 32, LaunchShape(2, 1)),
        (400, 8, False, 4096, 32, LaunchShape(2, 1)),
        (400, 8, True, 4096, 32, LaunchShape(1, 1)),
        (400, 4, False, 4096, 3, LaunchShape(2, 1)),
        (400, 8, False, 600, 1, LaunchShape(1, 1)),
        (1040, 4, False, 600, 600, LaunchShape(1, 2)),
        (8192, 8, False, 4096, 64, LaunchShape(2, 16)),
    ],
)
def test_the_shape_of_a_launch(width, itemsize, penalised, num_runs, runs_per_plan, shape):
    assert LaunchShape.of(width, itemsize, penalised, num_runs, runs_per_plan) == shape


# Errors


def test_devices_have_names():
    for name in ("gpu", "cuda:", "cuda:x", "CUDA", "", 0):
        with pytest.raises(ValueError, match="device must be 'cpu', 'cuda' or 'cuda:' and the number of a GPU, got"):
            nw.sweep(PROBLEM, METHOD, SPEEDS, device=name, **FEW)


def test_no_device_is_the_cpu():
    options = FEW | {"steps": 4}
    found, expected = (nw.sweep(PROBLEM, METHOD, SPEEDS, device=name, **options) for name in (None, "cpu"))
    assert found.engine == "compiled"
    assert np.array_equal(found.curves, expected.curves)


@pytest.mark.parametrize(("package", "words"), [("torch", "PyTorch"), ("triton", "Triton")])
def test_a_package_is_missing(package, words, monkeypatch):
    monkeypatch.setattr(device, "find_spec", lambda name: None if name == package else "found")
    with pytest.raises(ImportError, match=f"device='cuda' needs {words}, which is not installed: pip install"):
        nw.sweep(PROBLEM, METHOD, SPEEDS, device="cuda", **FEW)


def test_there_is_no_gpu(monkeypatch, no_interpreter):
    monkeypatch.setattr(device, "find_spec", lambda name: "found")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"device='cuda:1' needs a CUDA GPU, and PyTorch .* finds none"):
        nw.sweep(PROBLEM, METHOD, SPEEDS, device="cuda:1", **FEW)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RuntimeError, match="device='cuda:1' does not exist: PyTorch finds 1 GPUs"):
        nw.sweep(PROBLEM, METHOD, SPEEDS, device="cuda:1", **FEW)


def test_the_command_says_it_in_one_sentence(tmp_path, monkeypatch, no_interpreter):
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    (tmp_path / "data").write_text("1 1:0.5\n-1 2:1.0\n")
    options = ["--problem", str(tmp_path / "data"), "--folder", str(tmp_path / "sweep"), "--device", "cuda"]
    result = CliRunner().invoke(app, ["sweep", *options])
    assert result.exit_code == 2
    assert "device='cuda' needs PyTorch" in result.stderr


@pytest.fixture
def pretended_gpu(monkeypatch):
    """Errors come before the kernel is needed."""
    monkeypatch.setattr(device, "find_spec", lambda name: "found")
    monkeypatch.setenv(device.INTERPRETER, "1")


WIDE = nw.problems.LeastSquares(np.ones((2, 8193)), np.ones(2))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"update": nw.Momentum(0.9)}, "the update is not plain SGD, or the output is not the last iterate"),
        ({"output": nw.UniformAverage()}, "the update is not plain SGD, or the output is not the last iterate"),
        ({"problem": nw.problems.NoisyQuadratic(3)}, "no losses and gradients of NoisyQuadratic for GPUs"),
        ({"problem": nw.problems.Compressed(PROBLEM, nw.problems.TopK(2))}, "the problem has no compiled gradient"),
        ({"problem": WIDE}, "the problem has 8,193 params, and at most 8,192 fit"),
        ({"initial": np.zeros(5, np.float32)}, "the params are float32 and the data is float64"),
        ({"method": nw.ClippedASGD(nw.Constant(1.0), max_norm=1.0)}, "the method reads gradients"),
    ],
)
def test_what_a_gpu_cannot_do(options, reason, pretended_gpu):
    given = FEW | {"problem": PROBLEM, "method": METHOD} | options
    with pytest.raises(NotOnGpuError, match=f"this sweep cannot run on a GPU: .*{reason}.*. It runs with device='cpu'"):
        nw.sweep(given.pop("problem"), given.pop("method"), SPEEDS, device="cuda", **given)


def test_sparse_rows(pretended_gpu):
    scipy_sparse = pytest.importorskip("scipy.sparse")
    sparse = nw.problems.LeastSquares(scipy_sparse.csr_array(PROBLEM.features), PROBLEM.targets)
    with pytest.raises(NotOnGpuError, match="the rows of the problem are sparse"):
        nw.sweep(sparse, METHOD, SPEEDS, device="cuda", **FEW)


def test_data_that_does_not_fit(pretended_gpu, monkeypatch):
    monkeypatch.setattr(gpu_sweep, "free_bytes", lambda device: 1000)
    with pytest.raises(NotOnGpuError, match=r"the data of the problem takes 0\.0 GiB, and 0\.0 GiB of the memory"):
        nw.sweep(PROBLEM, METHOD, SPEEDS, device="cuda", **FEW)


def test_memory_that_is_used_up(pretended_gpu, monkeypatch):
    def fail(self, *arguments):
        raise torch.cuda.OutOfMemoryError("tried to allocate 7 GiB")

    monkeypatch.setattr(gpu_sweep.DeviceExecution, "__init__", fail)
    with pytest.raises(NotOnGpuError, match=r"the memory of the GPU is too small \(tried to allocate 7 GiB"):
        nw.sweep(PROBLEM, METHOD, SPEEDS, device="cuda", **FEW)


def test_the_problems_for_gpus_are_known():
    assert {kind.__name__ for kind in support.PROBLEMS} == {
        "LeastSquares",
        "LogisticRegression",
        "AbsoluteLoss",
        "Hinge",
    }
    assert find_spec("nowait.engines.simulator.gpu.triton_kernels") is not None


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.ERROR, logger="nowait")
