"""Tensors are pickled as buffers beside the pickle, modules of PyTorch by name, and all come back as they were."""

import pickle
import types

import pytest
import torch
from torch import nn
from torch.backends import cudnn
from torch.utils import deterministic
from torch.utils.data import TensorDataset

from nowait.core.pickling import dumps
from nowait.fleet.wire.shared import Payload, unpickle
from nowait.pytorch import TorchProblem

aten = torch.ops.aten
LARGE = torch.arange(100_000, dtype=torch.float32).view(1000, 100)


def sent(item):
    buffers = []
    data = dumps(item, buffers.append)
    return len(data), pickle.loads(data, buffers=[bytearray(buffer.raw()) for buffer in buffers])


@pytest.mark.parametrize(
    "tensor",
    [
        LARGE,
        LARGE[10:20],
        LARGE.t(),
        LARGE.bfloat16(),
        LARGE > 3,
        LARGE.to_sparse(),
        torch.zeros(0, 4),
        torch.tensor(3.0),
        torch.ones(3, requires_grad=True),
        torch.complex(torch.ones(2), torch.ones(2)).conj(),
    ],
)
def test_every_kind_of_tensor_comes_back(tensor):
    _, there = sent(tensor)
    assert torch.equal(there.to_dense(), tensor.to_dense())
    assert (there.dtype, there.shape, there.layout) == (tensor.dtype, tensor.shape, tensor.layout)
    assert there.requires_grad == tensor.requires_grad


def test_the_memory_of_tensors_is_beside_the_pickle():
    size, there = sent({"data": [LARGE, LARGE[1:]], "same": LARGE})
    assert size < 2_000
    assert there["data"][0] is there["same"]


def test_other_pickles_of_tensors_do_not_change():
    assert b"nowait" not in pickle.dumps(LARGE)


def test_the_job_of_a_run_has_its_data_beside_the_pickle():
    data = TensorDataset(LARGE, torch.zeros(len(LARGE)))
    payload = Payload.of(TorchProblem(lambda: nn.Linear(100, 1), lambda output, _: output.mean(), data, batch_size=4))
    try:
        assert payload.sizes[0] < 50_000
        assert LARGE.nbytes in payload.sizes[1:]
        there = unpickle(payload.fd, payload.sizes)
    finally:
        payload.close()
    assert torch.equal(there._batches.data.tensors[0], LARGE)
    there._batches.data.tensors[0][0] = 1.0  # workers may write to their own copy


def test_a_read_only_buffer_is_copied():
    buffers = []
    data = dumps(LARGE, buffers.append)
    there = pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])
    there += 1
    assert torch.equal(there, LARGE + 1)


def sets_benchmark():
    torch.backends.cudnn.benchmark = True


def sets_tf32():
    torch.backends.cuda.matmul.allow_tf32 = True


def calls_an_operator(x):
    return torch.ops.aten.relu(x)


def calls_a_custom_operator(x):
    return torch.ops.of_this_test.relu(x)


def uses_other_modules():
    return (
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.mkldnn.enabled,
        torch.backends.mps.is_built(),
        torch.backends.opt_einsum.enabled,
        torch.backends.quantized.engine,
        torch.backends.cudnn.rnn,
        torch.classes,
    )


def uses_script_level_modules():
    return cudnn.deterministic, deterministic.fill_uninitialized_memory, aten.relu


@pytest.mark.parametrize(
    "function",
    [
        sets_benchmark,
        sets_tf32,
        calls_an_operator,
        calls_a_custom_operator,
        uses_other_modules,
        uses_script_level_modules,
    ],
)
def test_a_function_of_a_script_may_use_any_module_of_pytorch(function):
    of_script = types.FunctionType(function.__code__, function.__globals__, "of_script")  # pickled by value
    there = sent(of_script)[1]
    assert there is not of_script
    names = there.__globals__.keys() & {"torch", "cudnn", "deterministic", "aten"}
    assert names
    assert all(there.__globals__[name] is globals()[name] for name in names)


@pytest.mark.parametrize(
    "module",
    [
        torch.backends,
        torch.backends.cudnn,
        torch.backends.cudnn.rnn,
        torch.backends.cuda,
        torch.backends.mkldnn,
        torch.backends.mps,
        torch.backends.opt_einsum,
        torch.backends.quantized,
        torch.utils.deterministic,
        torch.ops,
        torch.ops.aten,
        torch.classes,
    ],
    ids=lambda module: module.__name__,
)
def test_a_module_of_pytorch_comes_back_as_itself(module):
    assert sent([module])[1] == [module]


@pytest.mark.parametrize(
    "item",
    [
        torch.nn.attention.SDPBackend,
        torch.nn.attention.SDPBackend.MATH,
        torch.ops.aten.relu,
        torch.ops.aten.relu.default,
    ],
    ids=str,
)
def test_enumerations_and_operators_of_pytorch_are_sent_by_name(item):
    received = sent([item])[1][0]
    assert received is item or (received == item and type(received) is type(item))


def test_a_module_that_cannot_be_imported_is_refused():
    class Odd(types.ModuleType):
        pass

    with pytest.raises(TypeError, match="cannot pickle 'Odd' object"):
        sent(Odd("torch.no_such_module"))
