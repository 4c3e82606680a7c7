"""Reports that come without their details, or with others."""

import pytest

import nowait as nw
from faulty import Faulty
from nowait.fleet.host.host import Mailbox

ASYNCHRONOUS = nw.AsynchronousSGD(nw.Constant(0.05))


@pytest.mark.parametrize("fault", ["fail", "misfit"])
def test_a_report_whose_details_are_missing_is_an_error_without_a_traceback(fault, caplog, monkeypatch):
    monkeypatch.setattr(Mailbox, "details", lambda *_: None)
    with pytest.raises(nw.WorkerFailedError, match="worker 0 raised, not for the first time:\nits traceback did not"):
        nw.train(Faulty({0: fault}), ASYNCHRONOUS, workers=1, steps=50)


@pytest.mark.parametrize(
    ("fault", "details", "text"),
    [("misfit", ("KeyError", "a traceback"), "a traceback"), ("fail", ("float64", (3,)), "its traceback did not")],
)
def test_details_of_the_wrong_kind_are_an_error_of_the_worker(fault, details, text, caplog, monkeypatch):
    """A host on another machine may send anything."""
    monkeypatch.setattr(Mailbox, "details", lambda _, worker, ticket: details if worker == 0 else None)
    with pytest.raises(nw.WorkerFailedError, match=f"worker 0 raised, not for the first time:\n{text}"):
        nw.train(Faulty({0: fault}), ASYNCHRONOUS, workers=1, steps=50)
