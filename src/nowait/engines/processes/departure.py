"""SIGTERM to a worker process: it tells the server, which lets it deliver what it computes."""

from __future__ import annotations

import os
import signal

from nowait.fleet.wire.records import REPORT, ReportKind


def leave_on_sigterm(worker: int, serial: int, reports: int) -> None:
    """At the first SIGTERM, report that this process leaves; a second one ends it.

    The process goes on: the server sends it no more orders, and closes its pipe when it has reported on the one it has.
    Processes that the problem forks end at the first SIGTERM, as those of any program.
    """
    record = REPORT.pack(serial, 0.0, 0.0, worker, ReportKind.LEAVING)

    def on_sigterm(*_: object) -> None:
        _restore_default()
        os.write(reports, record)

    signal.signal(signal.SIGTERM, on_sigterm)
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_restore_in_child)


def _restore_default() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _restore_in_child() -> None:
    _restore_default()
    _unblock()


def _block() -> None:
    """Block SIGTERM: Python forgets the signals that come to a child before it is ready."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
