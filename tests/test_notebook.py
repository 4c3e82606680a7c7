"""The example notebook in a fresh kernel, with ipywidgets and without: what its cells show, and what they do not."""

import os
from pathlib import Path

import nbclient
import nbformat
import pytest
from nbformat.v4 import new_code_cell

NOTEBOOK = Path(__file__).parent.parent / "examples" / "notebook.ipynb"
NO_WIDGETS = 'import sys\n\nsys.modules["ipywidgets"] = None  # importing it raises ImportError'
OWN_PROBLEM = """
import numpy as np

class Mine:
    dimension = 3
    def initial(self):
        return np.ones(3)
    def loss(self, point):
        return float(point @ point) / 2
    def gradient(self, point, sample):
        return point.copy()

nw.train(Mine(), nw.AsynchronousSGD(nw.Constant(0.1)), workers=2, steps=50)
"""
FAILING = """
class Failing(Mine):
    def gradient(self, point, sample):
        raise ArithmeticError("no gradient today")

nw.train(Failing(), nw.AsynchronousSGD(nw.Constant(0.1)), workers=2, steps=50)
"""
LONG = """
from nowait.engines import progress
progress.SECONDS_BEFORE_SHOWING = 0.0
with progress.Progress("working") as bar:
    bar.show(0.25)
"""


class Client(nbclient.NotebookClient):
    """Keeps every version of what a cell displays, of which a notebook has only the last."""

    def process_message(self, msg, cell, cell_index):
        self.seen = [*getattr(self, "seen", []), (cell.id, msg["msg_type"], msg["content"].get("data", {}))]
        return super().process_message(msg, cell, cell_index)

    def shown_by(self, name):
        return [data.get("text/plain", "") for cell, _, data in self.seen if cell == name]


@pytest.fixture(autouse=True, scope="module")
def quiet_kernels(tmp_path_factory):
    """Kernels must not read the configuration of the user who runs the tests."""
    patch = pytest.MonkeyPatch()
    home = tmp_path_factory.mktemp("jupyter")
    patch.setenv("IPYTHONDIR", str(home / "ipython"))
    patch.setenv("JUPYTER_CONFIG_DIR", str(home / "config"))
    patch.setenv("JUPYTER_RUNTIME_DIR", str(home / "runtime"))
    yield
    patch.undo()


def execute(folder, cells):
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = Client(notebook, timeout=100, resources={"metadata": {"path": str(folder)}}, allow_errors=True)
    with open(os.devnull, "w") as nowhere:  # the kernel's own log
        client.execute(env=dict(os.environ), stderr=nowhere)
    return client


def code(name, source):
    return new_code_cell(source, id=name)


def cells_of_the_example(*names):
    cells = nbformat.read(NOTEBOOK, 4).cells
    found = {cell.id: cell for cell in cells if cell.cell_type == "code"}
    return [found[name] for name in names] if names else list(found.values())


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    """The whole example, then its training once more, and cells of our own."""
    folder = tmp_path_factory.mktemp("tour")
    cells = cells_of_the_example()
    [again] = cells_of_the_example("train")
    again.id = "again"
    client = execute(folder, [*cells, again, code("own", OWN_PROBLEM), code("failing", FAILING), code("long", LONG)])
    return client, {cell.id: cell.outputs for cell in client.nb.cells}, folder


def results(outputs):
    return [output.data for output in outputs if output.output_type == "execute_result"]


def test_no_cell_but_the_failing_one_writes_to_a_stream_or_fails(tour):
    _, outputs, _ = tour
    for kind in ("stream", "error"):
        assert {name for name, made in outputs.items() if any(one.output_type == kind for one in made)} <= {"failing"}


def test_results_show_tables_with_sparklines(tour):
    _, outputs, _ = tour
    for name, word in {"simulate": "AsynchronousSGD", "sweep": "stepsize", "race": "minibatch SGD"}.items():
        [data] = results(outputs[name])
        assert word in data["text/html"]
        assert "<svg" in data["text/html"]
    [data] = results(outputs["trace"])
    assert "worker 7" in data["text/html"]


def test_figures_show_themselves(tour):
    _, outputs, _ = tour
    for name in ("figure", "timeline"):
        [data] = results(outputs[name])
        assert "image/png" in data


def test_data_frames_have_the_evaluations_and_the_arrivals(tour):
    _, outputs, _ = tour
    [history] = results(outputs["pandas"])
    assert "500" in history["text/plain"].splitlines()[-1].split()
    assert results(outputs["polars"])


def test_a_cell_that_trains_can_be_run_twice(tour):
    _, outputs, folder = tour
    assert sorted(path.name for path in (folder / "runs").iterdir()) == ["notebook-1", "notebook-2"]
    assert results(outputs["again"])


def test_progress_is_shown_in_place_and_removed(tour):
    client, outputs, _ = tour
    assert any("AsynchronousSGD: step" in text for text in client.shown_by("train"))
    [progress, _] = outputs["train"]
    assert progress.data == {"text/html": "", "text/plain": ""}
    assert any(text.startswith("working 25%") for text in client.shown_by("long"))
    [bar] = outputs["long"]
    assert bar.data["text/plain"] == ""


def test_workers_run_a_problem_that_a_cell_defines(tour):
    _, outputs, _ = tour
    [run] = results(outputs["own"])
    assert run["text/plain"].startswith("Run(50 steps")


def test_an_error_is_shown_once(tour):
    _, outputs, _ = tour
    *before, error = outputs["failing"]
    assert "no gradient today" in error.evalue
    assert "no gradient today" not in str(before)
    assert all(one.data["text/plain"] == "" for one in before if one.output_type != "stream")


def test_without_ipywidgets_everything_is_shown_too(tmp_path):
    cells = cells_of_the_example("problem", "simulate", "train")
    client = execute(tmp_path, [code("block", NO_WIDGETS), *cells])
    outputs = {cell.id: cell.outputs for cell in client.nb.cells}
    assert not any(output.output_type in ("stream", "error") for made in outputs.values() for output in made)
    assert "<svg" in results(outputs["simulate"])[0]["text/html"]
    assert any("AsynchronousSGD: step" in text for text in client.shown_by("train"))
