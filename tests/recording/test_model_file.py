"""Params that are partly in a model file, and partly beside it."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from nowait.recording.errors import DamagedFileError
from nowait.recording.files import TensorEntry, write_file
from nowait.recording.model_file import ModelFile, ModelTensor, read_params, rest_of

PARAMS = np.arange(12, dtype=np.float32)


def a_file(places):
    tensors = [
        ModelTensor(
            TensorEntry(name, "F32", (stop - start,), 4 * (stop - start)),
            lambda params, start=start, stop=stop: params[start:stop],
            (start, stop),
        )
        for name, (start, stop) in places.items()
    ]
    return ModelFile(tuple(tensors), {"tied": "b"})


@pytest.mark.parametrize(
    "places",
    [
        {"b": (0, 12)},
        {"b": (6, 11), "a": (0, 6)},
        {"b": (2, 5), "a": (7, 9)},
        {"b": (0, 3), "empty": (3, 3), "a": (9, 12)},
    ],
)
def test_params_are_put_together_again(places, tmp_path):
    file = a_file(places)
    assert file.places == places
    contents = write_file(tmp_path / "model.safetensors", file.pieces(PARAMS))
    rest = rest_of(PARAMS, places)
    assert len(rest) == 12 - sum(stop - start for start, stop in places.values())
    assert load_file(tmp_path / "model.safetensors").keys() == places.keys()
    assert np.array_equal(read_params(tmp_path / "model.safetensors", contents, places, rest), PARAMS)


@pytest.mark.parametrize("places", [{"other": (0, 3)}, {"b": (0, 4)}])
def test_a_file_with_other_tensors_is_refused(places, tmp_path):
    contents = write_file(tmp_path / "model.safetensors", a_file({"b": (0, 3)}).pieces(PARAMS))
    with pytest.raises(DamagedFileError, match=f"its tensor {next(iter(places))} is missing or of another size"):
        read_params(tmp_path / "model.safetensors", contents, places, PARAMS[3:])


@pytest.mark.parametrize("places", [{"a": (0, 3), "b": (2, 5)}, {"a": (0, 3), "b": (12, 15)}])
def test_places_that_do_not_fit_are_refused(places, tmp_path):
    contents = write_file(tmp_path / "model.safetensors", a_file({"a": (0, 3), "b": (3, 6)}).pieces(PARAMS))
    with pytest.raises(DamagedFileError, match="the places of its tensors in params do not fit together"):
        read_params(tmp_path / "model.safetensors", contents, places, PARAMS[6:])
