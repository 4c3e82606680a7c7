"""Reports and details, in one process."""

import os
import pickle
import resource
from types import SimpleNamespace

import pytest

import nowait as nw
from faulty import Faulty
from nowait.fleet.host.host import Machine, Mailbox
from nowait.fleet.platform import is_ready
from nowait.fleet.wire.hub import Hub
from nowait.fleet.wire.records import REPORT, ReportKind

FIRST_FD_TOO_HIGH_FOR_SELECT = 1_024


@pytest.fixture
def mailbox():
    mailbox = Mailbox.open()
    yield mailbox
    mailbox.close()


def write(mailbox, worker, ticket, *content):
    mailbox.workers_details.send(pickle.dumps((worker, ticket, *content)))


def test_details_are_found_by_worker_and_ticket_once(mailbox):
    write(mailbox, 1, 7, "kind", "text")
    write(mailbox, 0, 8, "another kind", "another text")
    assert mailbox.details(1, 7) == ("kind", "text")
    assert mailbox.details(0, 8) == ("another kind", "another text")
    assert mailbox.details(1, 7) is None


def test_details_that_never_came_are_not_waited_for(mailbox):
    assert mailbox.details(0, 3) is None


def test_the_details_of_a_process_that_died_before_its_report_are_dropped(mailbox):
    """Its replacement has another ticket, and its report comes with details of its own, or without one."""
    write(mailbox, 1, 7, "stale")
    assert mailbox.details(1, 9) is None
    write(mailbox, 1, 10, "stale too")
    write(mailbox, 1, 12, "right")
    assert mailbox.details(1, 12) == ("right",)
    assert mailbox.details(1, 10) is None


def test_details_are_collected_with_the_reports_so_that_stale_ones_never_block_a_worker(mailbox):
    mailbox.workers_details.setblocking(False)
    sent = 0
    for _ in range(1_000):
        write(mailbox, 1, sent, "x" * 1_000)
        sent += 1
        assert mailbox.drain() == b""
    write(mailbox, 1, sent, "the last")
    assert mailbox.details(1, sent) == ("the last",)


def test_memory_of_details_is_bounded_by_the_number_of_workers(mailbox):
    for ticket in range(1_000):
        mailbox.add_details(ticket % 3, ticket, ("text",))
    assert [mailbox.details(worker, ticket) for worker, ticket in ((0, 999), (1, 997), (2, 998))] == [("text",)] * 3
    assert mailbox.details(0, 996) is None


def test_all_reports_are_read(mailbox):
    report = REPORT.pack(1, 0.0, 0.0, 2, ReportKind.GRADIENT)
    os.write(mailbox.workers_reports, 5 * report)
    assert mailbox.drain() == 5 * report
    assert mailbox.drain() == b""


@pytest.fixture
def many_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FIRST_FD_TOO_HIGH_FOR_SELECT + 200
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"this machine allows {hard} open files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    files = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while files[-1] < FIRST_FD_TOO_HIGH_FOR_SELECT:
            files.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_open_files")
def test_runs_work_with_more_than_1024_open_files():
    run = nw.train(Faulty({(1, 2): "kill"}), nw.AsynchronousSGD(nw.Constant(0.05)), workers=2, steps=200)
    assert run.stats.steps == 200


@pytest.mark.usefixtures("many_open_files")
def test_a_high_file_descriptor_can_be_waited_for():
    ours, theirs = os.pipe()
    assert ours > FIRST_FD_TOO_HIGH_FOR_SELECT
    assert not is_ready(ours, 0)
    os.write(theirs, b".")
    assert is_ready(ours, 0)
    os.close(ours)
    os.close(theirs)


def test_reports_that_were_drained_after_the_pipe_became_readable_are_not_waited_for(mailbox):
    """The zygote's messages and the reports are ready in one look at both, and those before a death are drained.

    To wait for more would stop a relay for ever: its workers wait for orders, which it does not read meanwhile.
    """
    taken = []
    resources = SimpleNamespace(mailbox=mailbox, gradients=SimpleNamespace(views=[], close=lambda: None))
    machine = Machine(resources, Hub(), lambda records, gradients: taken.append(records))
    report = REPORT.pack(7, 0.0, 0.0, 1, ReportKind.GRADIENT)
    os.write(mailbox.workers_reports, report)
    machine.drain()
    machine.read_reports()
    os.write(mailbox.workers_reports, report)
    machine.read_reports()
    assert taken == [report, report]
