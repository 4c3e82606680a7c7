"""Tensors are pickled as buffers beside the pickle, and come back as they were."""

import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from nowait.core.pickling import dumps
from nowait.engines.processes.payload import Payload, unpickle
from nowait.pytorch import TorchProblem

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
