"""The event loop of real workers: waits for input, passes it on, and keeps time."""

from __future__ import annotations

import contextlib
import logging
from typing import final

from nowait.core.memory import to_host
from nowait.engines.live import LiveView
from nowait.engines.progress import spinner
from nowait.engines.session import Parts
from nowait.engines.workers.actions import Began, Look, Requested, Tick, WorkforceEvent
from nowait.engines.workers.clock import RunClock, WallClock
from nowait.engines.workers.dispatch import Dispatcher
from nowait.engines.workers.failures import FIRST_DEADLINE
from nowait.engines.workers.snapshots import Snapshots
from nowait.engines.workers.transport import HOME, Channel, Reports, Transport
from nowait.engines.workers.workforce import Workforce
from nowait.fleet.options import WorkerOptions
from nowait.fleet.wire.records import FINGERPRINTER
from nowait.numerics.compiled import warm_up
from nowait.recording import Interrupted, Run

logger = logging.getLogger("nowait")

SECONDS_BETWEEN_LOOKS = 0.25
"""How often the loop checks for workers that hang and redraws the live view."""
SECONDS_BETWEEN_SNAPSHOTS = 1.0
"""How often the numbers that ``metrics_port`` shows are renewed."""
SECONDS_BETWEEN_WRITES = 1.0
"""How often the trace in the folder of a run is brought up to date, for those who read it during the run."""
SECONDS_BETWEEN_LOOKS_AT_START = 0.05
"""How often it checks for signals while the problem is loaded."""


@final
class Loop:
    """Runs one server with the workers of a transport, from start to end."""

    def __init__(
        self,
        parts: Parts,
        transport: Transport,
        workforce: Workforce,
        view: LiveView,
        clock: WallClock,
        *,
        imitating: bool = False,
        options: WorkerOptions,
    ) -> None:
        self._parts, self._transport, self._workforce, self._view = parts, transport, workforce, view
        self._server = parts.server
        parts.recorder.follow_workers()
        self._wait, self._monotonic = clock.wait, clock.monotonic
        self._clock = RunClock(clock, 0.0 if parts.checkpoint is None else parts.checkpoint.state.time)
        self._dispatcher = Dispatcher(parts, transport, workforce, self._clock, imitating=imitating, options=options)
        self._session = self._dispatcher.session
        self._fingerprinter: Channel | None = None
        self._interrupted = ""
        self._ended = False
        """True once all processes were ended."""
        self._seconds = self._next_look = self._next_snapshot = 0.0
        self._draw_from = 0.0
        """When the live view is drawn first: not at the start, when all workers need the server."""
        self._next_write = SECONDS_BETWEEN_WRITES
        self._snapshots: Snapshots | None = None
        if parts.keeper is not None:
            parts.keeper.wanted_workers = workforce.wanted_workers

    def open(self, minimum: int = 1) -> None:
        """Open the transport and wait until there is room for ``minimum`` workers, and for the fingerprint."""
        self._transport.open()
        warm_up(to_host(self._server.params))
        self._clock.start()
        workforce = self._workforce
        while not (workforce.is_home_open and workforce.room >= minimum) and not self._interrupted:
            self._receive(SECONDS_BETWEEN_LOOKS_AT_START)
            self._tick_transport(minimum, 0)
            if workforce.agenda.take_reopening(self._clock.read()):
                self._transport.reopen()
        if self._dispatcher.fingerprinting.is_wanted and not self._interrupted:
            self._compute_fingerprint()
        if self._interrupted:
            raise Interrupted(self._interrupted, f"{self._interrupted} came before the run had begun")

    def _compute_fingerprint(self) -> None:
        fingerprinting, serial = self._dispatcher.fingerprinting, self._workforce.next_serial()
        self._workforce.clock_turned_back(self._clock.start())
        fingerprinting.started(serial, self._clock.now)
        self._fingerprinter = self._transport.start(FINGERPRINTER, serial, HOME, self._clock.began)
        while fingerprinting.blocks_the_run(self._clock.read()) and not self._interrupted:
            self._receive(SECONDS_BETWEEN_LOOKS)
            self._tick_transport(0, 0)
        if not self._interrupted and fingerprinting.must_be_killed():
            self._transport.kill(serial, HOME)

    def begin(self) -> None:
        """Start the processes, the server and the clock; with ``together``, the clock when every worker is ready."""
        self._session.begin()
        together = self._dispatcher.line.holding
        self._workforce.clock_turned_back(self._clock.start())
        if together:
            self._clock.hold()
        self._dispatcher.execute(self._workforce.begin(self._server.workers, self._clock.now))
        self._dispatcher.obey(self._session.start())
        self._handle(Began())
        if together:
            self._start_together()
        self._draw_from = self._clock.now + SECONDS_BETWEEN_LOOKS

    def run(self) -> None:
        """Run until the budget, a callback or a signal ends it."""
        while not self._session.finished:
            self._wait_and_handle()
            if self._workforce.has_requests and not self._session.finished:
                self._handle(Requested())
            if self._interrupted:
                self._receive(0.0)
                self._session.interrupt(self._interrupted)
        self._seconds = self._clock.read()
        self._finish_evaluation()

    def _start_together(self) -> None:
        """Wait until every worker is ready, at most ``FIRST_DEADLINE`` seconds; then start the clock and the workers.

        A worker that dies meanwhile is replaced and waited for once; one that dies again joins after the start.
        """
        with spinner(f"{self._view.title}: waiting until all workers are ready", self._view.shown):
            self._wait_until_ready()
        if self._session.finished or self._interrupted:
            return
        began = self._clock.began
        self._clock.start()
        self._dispatcher.release_workers(self._clock.began - began)

    def _wait_until_ready(self) -> None:
        dispatcher, deadline = self._dispatcher, self._monotonic() + FIRST_DEADLINE
        while not (dispatcher.is_ready or self._session.finished or self._interrupted):
            if self._monotonic() > deadline:
                late = dispatcher.line.missing
                what = (
                    f"without workers {late}, which were not ready" if late else "though its first loss was not known"
                )
                logger.warning("the run starts %s after %.0f s", what, FIRST_DEADLINE)
                return
            self._receive(SECONDS_BETWEEN_LOOKS_AT_START)
            self._handle(Requested() if self._workforce.has_requests else Tick())
            self._tick_transport(len(self._workforce.vacant), len(self._workforce.workers))

    def _finish_evaluation(self) -> None:
        """Wait for the loss that is being computed, so that none is lost at the end of a run."""
        while self._dispatcher.is_evaluating and self._server.diverged is None and not self._interrupted:
            self._wait_and_handle()
        if self._interrupted and not self._session.interrupted:
            self._session.interrupt(self._interrupted)

    def result(self) -> Run:
        """Save the run, end all processes, whose memory the last evaluation may need, and return the finished run."""
        if self._dispatcher.auditor is not None:
            self._dispatcher.auditor.say()
        self._session.save()  # first, because a second signal may come while processes end
        self._end_processes()
        if self._session.interrupted:
            self._view.say(f"{self._view.title}: computing the last loss; press Ctrl-C again to skip it")
        return self._session.result(self._seconds, self._transport.engine)

    def calling_on_end(self) -> contextlib.AbstractContextManager[None]:
        """Call the ``on_end`` hooks if an exception leaves the block."""
        return self._session.calling_on_end()

    def interrupt(self, signal: str) -> None:
        """End the run after the next events."""
        self._interrupted = signal

    def close(self) -> None:
        """Kill all processes and release everything."""
        self._end_processes()
        self._dispatcher.close()
        if self._fingerprinter is not None:
            self._fingerprinter.close()
        if self._parts.keeper is not None:
            self._parts.keeper.wanted_workers = list  # break the reference cycle

    def _end_processes(self) -> None:
        if not self._ended:
            self._transport.close()
            self._ended = True

    def _handle(self, event: WorkforceEvent) -> None:
        self._clock.read()
        self._dispatcher.decide(event)

    def _wait_and_handle(self) -> None:
        """Do what is due, then wait for input and handle it."""
        if self._clock.now >= self._next_look:
            self._look()
        agenda = self._workforce.agenda
        if not agenda.is_empty:
            self._handle(Tick())
        due = min(self._next_look, agenda.next(finished=self._session.finished))
        self._receive(max(0.0, due - self._clock.now))

    def _receive(self, seconds: float) -> None:
        """Wait for input, at most this many seconds, and handle it."""
        pending = self._transport.flush()
        ready = self._wait(self._transport.fds, 0.0 if pending else seconds)
        if not ready and not pending:
            self._clock.read()
            return
        for event in self._transport.receive(ready):
            if type(event) is Reports:
                self._dispatcher.handle_reports(event)
            else:
                self._dispatcher.handle(event)

    def _tick_transport(self, vacant: int, working: int) -> None:
        for event in self._transport.tick(vacant, working):
            self._dispatcher.handle(event)

    def _look(self) -> None:
        """Check for workers that hang, let the transport do its periodic work, and redraw the live view."""
        self._next_look = self._clock.now + SECONDS_BETWEEN_LOOKS
        workforce = self._workforce
        self._handle(Look())
        if not self._session.finished:
            self._tick_transport(len(workforce.vacant), len(workforce.workers))
        if self._view.shown and self._clock.now >= self._draw_from:
            views = workforce.views(self._clock.now, self._server.jobs_of, self._session.by_worker(self._clock.now))
            session, now = self._session, self._clock.now
            self._view.update(self._server, session.loss, views, session.shown_metrics, now=now)
        self._tell_others()

    def _tell_others(self) -> None:
        """Renew what those read who look at the run from outside: the metrics page, and the trace in the folder."""
        now, metrics = self._clock.now, self._parts.metrics
        if metrics is not None and now >= self._next_snapshot:
            self._next_snapshot = now + SECONDS_BETWEEN_SNAPSHOTS
            if self._snapshots is None:
                failures, transport = self._workforce.failures, self._transport
                self._snapshots = Snapshots(self._parts, self._session, failures, transport)
            metrics.show(self._snapshots.take(now))
        if self._parts.keeper is not None and now >= self._next_write:
            self._next_write = now + SECONDS_BETWEEN_WRITES
            self._parts.recorder.flush()
