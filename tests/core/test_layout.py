"""Layouts: names, shapes and positions of tensors in params."""

import pickle

import numpy as np
import pytest

import nowait as nw
from nowait.core import Block, Layout, Server, Update
from nowait.core.capabilities import Capabilities

LAYOUT = Layout.of({"weight": (2, 3), "bias": (3,), "scale": ()})


def test_blocks_follow_each_other():
    assert list(LAYOUT) == ["weight", "bias", "scale"]
    assert LAYOUT["bias"] == Block("bias", (3,), 6, 9)
    assert LAYOUT["bias"].entries == slice(6, 9)
    assert (len(LAYOUT), LAYOUT.length) == (3, 10)
    assert Layout.flat(4).blocks == (Block("params", (4,), 0, 4),)
    assert pickle.loads(pickle.dumps(LAYOUT)) == LAYOUT


def test_views_share_the_memory_of_the_vector():
    vector = np.arange(10.0)
    weight, _, scale = LAYOUT.views(vector)
    weight[1, 0], scale[()] = 30.0, 90.0
    assert (vector[3], vector[9]) == (30.0, 90.0)


@pytest.mark.parametrize(
    "blocks",
    [
        (),
        (Block("first", (2,), 0, 2), Block("second", (2,), 3, 5)),
        (Block("first", (2, 2), 0, 3),),
        (Block("same", (2,), 0, 2), Block("same", (2,), 2, 4)),
    ],
    ids=["empty", "gap", "size", "name"],
)
def test_bad_layouts_are_refused(blocks):
    with pytest.raises(ValueError, match=r"blocks must follow each other|a layout needs blocks"):
        Layout(blocks)


class ByBlock(Update):
    """Divides the step of every block by the number of its entries; records what it was told."""

    def start_with_layout(self, params, layout):
        self.layout = layout

    def apply(self, params, direction, stepsize, out):
        for name in self.layout:
            block = self.layout[name]
            out[block.entries] = (
                params[block.entries] - stepsize / (block.stop - block.start) * direction[block.entries]
            )


class Two:
    """Five params in two blocks, and two statistics."""

    dimension, num_statistics, layout = 7, 2, Layout.of({"matrix": (2, 2), "number": ()})

    def initial(self):
        return np.zeros(7)

    def gradient(self, point, sample):
        return np.array([4.0, 4.0, 4.0, 4.0, 1.0, 0.0, 1.0])

    def loss(self, point):
        return 0.0


def test_an_update_gets_the_layout_of_the_problem():
    update = ByBlock()
    run = nw.simulate(Two(), nw.AsynchronousSGD(nw.Constant(0.5)), nw.speeds.Fixed([1.0]), steps=1, update=update)
    assert update.layout is Two.layout
    assert run.last.tolist()[:5] == [-0.5] * 5


def test_without_a_layout_params_are_one_block():
    update = ByBlock()
    Server(nw.AsynchronousSGD(nw.Constant(0.5)), np.zeros(3), 1, update=update).start()
    assert update.layout == Layout.flat(3)


def test_a_layout_of_another_length_is_refused():
    with pytest.raises(ValueError, match="the layout has 10 entries, but 3 params are trained"):
        Server(nw.AsynchronousSGD(nw.Constant(0.5)), np.zeros(5), 1, statistics=2, layout=LAYOUT)


def test_something_else_called_layout_does_not_count():
    problem = Two()
    problem.layout = "tight"
    assert Capabilities.of(problem).layout is None
