"""PyTorch's global settings of a script hold in all processes that compute for it."""

import os
import pickle
import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import nowait as nw
from nowait.core.pickling import dumps
from nowait.core.problem import process_settings
from nowait.fleet.wire.records import Job
from nowait.problems import LocalSteps
from nowait.pytorch import TorchProblem
from nowait.pytorch.global_settings import SETTINGS, WORKSPACE, GlobalSettings
from nowait.recording.files import sealed, write_json
from nowait.recording.run import read_config

GPU_MARKS = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")]
ON_GPU = pytest.param("cuda", marks=GPU_MARKS)
DATA = TensorDataset(torch.randn(20, 3, dtype=torch.float64), torch.randn(20, 1, dtype=torch.float64))


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """Restore all settings after each test."""
    monkeypatch.setenv(WORKSPACE, ":16:8")
    before = GlobalSettings.of_this_process()
    yield
    before.apply()


def a_problem(forward=None, device="cpu"):
    return TorchProblem(
        lambda: nn.Linear(3, 1).to(torch.get_default_dtype()),
        nn.functional.mse_loss,
        DATA,
        batch_size=4,
        forward=forward or (lambda model, batch: (model(batch[0].to(model.weight.dtype)), batch[1])),
        device=device,
    )


CHANGES = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    WORKSPACE: lambda: os.environ.update({WORKSPACE: ":4096:8"}),
    "flush denormals": lambda: torch.set_flush_denormal(True),
    "float32 matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "torch.backends.cuda.matmul.fp32_precision": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "torch.backends.cudnn.conv.fp32_precision": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "torch.backends.fp32_precision": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "torch.backends.cudnn.benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "torch.backends.cudnn.deterministic": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "torch.backends.mkldnn.enabled": lambda: setattr(torch.backends.mkldnn, "enabled", False),
    "torch.backends.opt_einsum.strategy": lambda: setattr(torch.backends.opt_einsum, "strategy", "optimal"),
    "flash_sdp": lambda: torch.backends.cuda.enable_flash_sdp(False),
}


@pytest.mark.parametrize("name", [name for name in CHANGES if name in SETTINGS])
def test_a_setting_of_the_script_is_set_in_another_process(name):
    usual = GlobalSettings.of_this_process()
    CHANGES[name]()
    of_script = GlobalSettings.of_this_process()
    assert of_script.values[name] != usual.values[name]

    usual.apply()  # as it is in a process that has just been started
    assert GlobalSettings.of_this_process() == usual
    pickle.loads(pickle.dumps(of_script)).apply()

    assert GlobalSettings.of_this_process() == of_script


def test_settings_that_mix_old_and_new_names_are_set():
    torch.set_float32_matmul_precision("high")
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this version of PyTorch has only the old names")
    usual = GlobalSettings.of_this_process()
    torch.backends.cuda.matmul.fp32_precision = "ieee"  # reading allow_tf32 raises now
    of_script = GlobalSettings.of_this_process()
    usual.apply()
    of_script.apply()
    assert GlobalSettings.of_this_process() == of_script


def test_what_a_script_sets_by_an_old_name_can_be_read_by_it_in_workers():
    torch.backends.cudnn.allow_tf32 = False
    of_script = GlobalSettings.of_this_process()
    torch.backends.cudnn.allow_tf32 = True  # as it is in a process that has just been started
    of_script.apply()
    with torch.backends.cudnn.flags(enabled=False):  # reads allow_tf32
        pass
    assert torch.backends.cudnn.allow_tf32 is False


def test_the_log_names_a_setting_that_cannot_be_set(caplog):
    GlobalSettings({"torch.backends.quantized.engine": "of another machine", "of PyTorch 99": 3}).apply()
    assert [record.getMessage().partition(" is ")[0] for record in caplog.records] == [
        "PyTorch's global setting torch.backends.quantized.engine",
        "PyTorch's global setting of PyTorch 99",
    ]


def test_a_job_sets_them_before_the_model_is_built():
    torch.set_default_dtype(torch.float64)
    problem = a_problem()
    job = Job(problem, 0, problem.dimension, "<f8", process_settings=process_settings(problem))
    torch.set_default_dtype(torch.float32)  # as it is in another process
    without_problem = pickle.loads(dumps(replace(job, problem=None), None))  # for hosts that have the problem

    replace(without_problem, problem=problem).prepare()

    assert torch.get_default_dtype() == torch.float64


class Holds:
    """A problem of the user that has another one as an attribute."""

    def __init__(self, inner):
        self.inner, self.dimension = inner, inner.dimension
        self.initial, self.gradient, self.loss = inner.initial, inner.gradient, inner.loss


class Bare:
    dimension = 1
    initial = gradient = loss = None


def test_wrappers_and_problems_with_problems_have_the_settings_of_the_inner_one():
    assert process_settings(LocalSteps(a_problem(), steps=2, stepsize=0.1)) == (GlobalSettings.of_this_process(),)
    assert process_settings(Holds(a_problem())) == (GlobalSettings.of_this_process(),)
    assert process_settings(Bare()) == ()


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_workers_and_evaluator_compute_with_the_settings_of_the_script(device):
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True

    def forward(model, batch):
        now = (torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark)
        assert now == (torch.float64, "high", True), now
        return model(batch[0]), batch[1]

    method = nw.AsynchronousSGD(nw.DelayAdaptive(0.1))
    run = nw.train(a_problem(forward, device), method, workers=2, steps=20)

    assert run.params.dtype == "float64"
    assert nw.replay(run.trace, a_problem(forward, device), method).params.tolist() == run.params.tolist()


def test_a_resumed_run_names_the_settings_that_have_changed(tmp_path, caplog):
    torch.set_float32_matmul_precision("high")
    method = nw.AsynchronousSGD(nw.DelayAdaptive(0.1))
    nw.train(a_problem(), method, workers=1, steps=5, folder=tmp_path / "run")
    nw.resume(tmp_path / "run", a_problem(), steps=8)
    assert "other global settings" not in caplog.text

    torch.set_float32_matmul_precision("highest")
    nw.resume(tmp_path / "run", a_problem(), steps=10)

    assert "other global settings than the run had" in caplog.text
    assert "float32 matmul precision was 'high' and is 'highest'" in caplog.text
    assert "defaults of this machine" not in caplog.text

    config = read_config(tmp_path / "run")
    config["process_settings"]["torch.backends.quantized.engine"] = "of another machine"
    config["environment"]["machine"]["host"] = "other"
    write_json(tmp_path / "run" / "config.json", sealed(config))
    nw.resume(tmp_path / "run", a_problem(), steps=12)
    assert re.search(
        r"quantized.engine was 'of another machine' .*\. They may be the defaults of this mach", caplog.text
    )


def test_a_default_device_is_refused():
    torch.set_default_device("meta")
    try:
        with pytest.raises(ValueError, match=r"the default device is 'meta'.*TorchProblem\(\.\.\., device='meta'\)"):
            a_problem()
    finally:
        torch.set_default_device(None)


def test_autocast_around_the_problem_is_refused():
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="workers compute outside of it"):
        a_problem()
