"""What Prometheus reads: the text, and the server that shows it during a run."""

import contextlib
import errno
import http.client
import math
import socket
import socketserver
import threading
from dataclasses import replace

import pytest

import nowait as nw
from faulty import Faulty
from nowait.api.train_arguments import checked_metrics_address
from nowait.core.ledger import Counts
from nowait.core.notes import Note
from nowait.engines import metrics_server
from nowait.engines.exposition import RunSnapshot, exposition, growing_seconds
from nowait.engines.http_server import MOST_CONNECTIONS, SECONDS_FOR_A_REQUEST
from nowait.engines.metrics_server import MetricsServer
from nowait.recording.phases import PHASES, Phases
from nowait.recording.worker_stats import WorkerStats

METHOD = nw.AsynchronousSGD(nw.Constant(0.05))
WORKERS = (
    WorkerStats(0, 'spot "7"\\a\nb', "cpu", 3, 0.75, Phases(computing=2.5, sending=0.5, unfinished=4.0), in_flight=1.5),
    WorkerStats(1, "here", "cuda:0", 0, 0.25, Phases(waiting=1.0)),
)
SNAPSHOT = RunSnapshot(
    method="AsynchronousSGD",
    engine="processes",
    seconds=12.5,
    steps=40,
    counts=Counts(gradients=41, dropped=1, rejected=2, late=3, lost=4, cancelled=5),
    num_workers=2,
    by_worker=WORKERS,
    phase_seconds=growing_seconds(WORKERS, {}),
    loss=math.inf,
    metrics={"accuracy": 0.5, "perplexity": math.nan},
    delays={0.5: 2.0, 1.0: 7.0},
    deaths=6,
    errors=7,
    strays=8,
    bytes_up=100,
    bytes_down=200,
    traffic=(300, 400),
    checkpoint_age=3.0,
    note=Note(7, 3.0, "waits for", {"waits_for": 6.0, "workers": 8.0}),
)


def samples_of(text):
    """Samples by name and labels, as Prometheus' own parser reads them."""
    parser = pytest.importorskip("prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(text))
    assert all(family.documentation and family.type in ("counter", "gauge") for family in families)
    samples = [sample for family in families for sample in family.samples]
    return {(one.name, *(f"{name}={text}" for name, text in one.labels.items())): one.value for one in samples}


# The text


def test_counters_never_decrease():
    before = growing_seconds(WORKERS, {})
    assert (before[0, "unfinished"], before[0, "computing"], before[1, "waiting"]) == (2.5, 2.5, 1.0)
    less = replace(WORKERS[0], phases=Phases(computing=2.0, sending=0.75, unfinished=4.0), in_flight=2.0)
    after = growing_seconds([less], before)
    assert (after[0, "unfinished"], after[0, "computing"], after[0, "sending"]) == (2.5, 2.5, 0.75)
    assert after[1, "waiting"] == 1.0


def test_prometheus_reads_every_number():
    samples = samples_of(exposition(SNAPSHOT))
    assert samples["nowait_run_info", "method=AsynchronousSGD", "engine=processes"] == 1
    names = ["run_seconds", "steps_total", "gradients_total", "gradients_dropped_total", "gradients_rejected_total"]
    assert [samples[(f"nowait_{name}",)] for name in names] == [12.5, 40, 41, 1, 2]
    names = ["gradients_late_total", "tickets_lost_total", "tickets_cancelled_total", "loss", "workers"]
    assert [samples[(f"nowait_{name}",)] for name in names] == [3, 4, 5, math.inf, 2]
    names = ["worker_deaths_total", "worker_errors_total", "gradient_bytes_total", "params_bytes_total"]
    assert [samples[(f"nowait_{name}",)] for name in names] == [6, 7, 100, 200]
    assert samples[("nowait_reports_unknown_total",)] == 8
    names = ["checkpoint_age_seconds", "network_received_bytes_total", "network_sent_bytes_total"]
    assert [samples[(f"nowait_{name}",)] for name in names] == [3.0, 300, 400]
    assert samples["nowait_metric", "name=accuracy"] == 0.5
    assert math.isnan(samples["nowait_metric", "name=perplexity"])
    assert samples["nowait_decision", "name=waits_for"] == 6
    assert samples["nowait_delay_steps", "quantile=1"] == 7.0


def test_prometheus_reads_where_the_time_of_each_worker_went():
    samples = samples_of(exposition(SNAPSHOT))
    who = ("worker=0", 'node=spot "7"\\a\nb', "device=cpu")
    seconds = {phase: samples["nowait_worker_seconds_total", *who, f"phase={phase}"] for phase in PHASES}
    assert seconds == dict.fromkeys(PHASES, 0.0) | {"computing": 2.5, "sending": 0.5, "unfinished": 2.5}
    assert samples["nowait_worker_in_flight_seconds", *who] == 1.5, "not in the counter, which only grows"
    assert samples["nowait_worker_gradients_total", *who] == 3
    assert samples["nowait_worker_gradient_seconds", *who] == 1.0
    assert ("nowait_worker_gradient_seconds", "worker=1", "node=here", "device=cuda:0") not in samples


def test_the_text_itself():
    """For readers without Prometheus' parser."""
    text = exposition(SNAPSHOT)
    assert "# HELP nowait_steps_total Steps made.\n# TYPE nowait_steps_total counter\nnowait_steps_total 40\n" in text
    assert "nowait_loss +Inf\n" in text
    assert 'nowait_metric{name="perplexity"} NaN\n' in text
    assert r'nowait_worker_gradients_total{worker="0",node="spot \"7\"\\a\nb",device="cpu"} 3' in text
    assert text.endswith("\n")
    assert exposition(None) == "# The run has not begun.\n"


def test_what_is_not_known_has_no_sample():
    bare = RunSnapshot("", "", 0.0, 0, Counts(), 0)
    text = exposition(bare)
    absent = [
        "nowait_loss",
        "nowait_metric",
        "nowait_delay",
        "nowait_decision",
        "nowait_checkpoint",
        "nowait_worker_seconds",
        "network",
    ]
    assert [name for name in absent if name in text] == []


# The server


@pytest.fixture
def server():
    made = MetricsServer.open(("127.0.0.1", 0))
    yield made
    made.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "nowait-metrics"]


def get(server, path="/metrics", method="GET", **headers):
    connection = http.client.HTTPConnection(*server.address, timeout=20)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read().decode()
    finally:
        connection.close()


def test_the_latest_snapshot_is_served(server):
    assert get(server) == (200, "text/plain; version=0.0.4; charset=utf-8", exposition(None))
    server.show(SNAPSHOT)
    assert get(server)[2] == exposition(SNAPSHOT)
    assert get(server, "/metrics?x=1")[0] == 200
    assert get(server, "/")[0] == 404
    assert get(server, "/metrics", "POST")[0] == 501


def test_a_client_that_says_nothing_keeps_nobody_waiting(server, monkeypatch):
    monkeypatch.setattr(metrics_server._Handler, "timeout", None)
    before = threading.active_count()
    with socket.create_connection(server.address):
        assert get(server)[0] == 200
        server.close()
    assert threading.active_count() < before, "its thread has ended too"


def is_closed(connection):
    """Wait until the server has closed a connection; False if it does not."""
    connection.settimeout(10)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def test_past_the_limit_of_connections_the_oldest_is_closed_and_others_are_answered(server, monkeypatch):
    monkeypatch.setattr(metrics_server._Handler, "timeout", None)
    monkeypatch.setattr(server._server, "_clock", lambda: 0.0)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(server.address)) for _ in range(MOST_CONNECTIONS + 5)]
        assert get(server)[0] == 200
        assert all(is_closed(connection) for connection in silent[:6])
        assert len(server._server._deadlines) < MOST_CONNECTIONS + 1
        silent[-1].sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        silent[-1].settimeout(10)
        assert silent[-1].recv(12) == b"HTTP/1.0 200", "the newest ones are still open"


def test_without_descriptors_for_another_connection_the_oldest_one_is_closed(server, monkeypatch):
    monkeypatch.setattr(metrics_server._Handler, "timeout", None)
    monkeypatch.setattr(server._server, "_clock", lambda: 0.0)
    accept, failures = socketserver.TCPServer.get_request, []
    with socket.create_connection(server.address) as first:
        assert get(server)[0] == 200, "so the first one was accepted"

        def without_descriptors(self):
            if not failures:
                failures.append(errno.EMFILE)
                raise OSError(errno.EMFILE, "Too many open files")
            return accept(self)

        monkeypatch.setattr(socketserver.TCPServer, "get_request", without_descriptors)
        assert get(server)[0] == 200
        assert is_closed(first)
        assert failures == [errno.EMFILE]


def test_a_client_that_sends_its_request_byte_by_byte_has_one_deadline(server, monkeypatch):
    monkeypatch.setattr(metrics_server._Handler, "timeout", None)
    now = [100.0]
    monkeypatch.setattr(server._server, "_clock", lambda: now[0])
    with socket.create_connection(server.address) as slow:
        slow.sendall(b"G")
        assert get(server)[0] == 200, "a later connection was answered, so the slow one was accepted"
        for byte in (b"E", b"T"):
            now[0] += 0.6 * SECONDS_FOR_A_REQUEST
            slow.sendall(byte)
        assert is_closed(slow)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:9100", "192.168.0.7", ""])
def test_a_request_under_another_name_is_refused(server, host):
    status, _, text = get(server, Host=host)
    assert (status, "does not answer under that name" in text) == (421, True)


def test_a_port_that_is_in_use_is_refused_before_anything_is_started(server):
    with pytest.raises(OSError, match=r"metrics_port: cannot listen at 127\.0\.0\.1, port \d+: .*in use"):
        nw.train(Faulty(), METHOD, workers=1, steps=3, metrics_port=server.address)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (None, None),
        (9100, ("127.0.0.1", 9100)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("[::1]:9100", ("::1", 9100)),
        (("0.0.0.0", 0), ("0.0.0.0", 0)),
    ],
)
def test_addresses(given, address):
    assert checked_metrics_address(given) == address


@pytest.mark.parametrize("wrong", ["9100", ":9100", "here", True, 70_000, -1, ("here",), 3.5, ("", 1), ("here", "x")])
def test_wrong_addresses_are_refused(wrong):
    with pytest.raises(ValueError, match="metrics_port must be a port, such as 9100, or an address"):
        checked_metrics_address(wrong)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_a_run_is_shown_while_it_goes_on_and_resumed(tmp_path):
    """One real run: the folder has the trace, the nodes and the totals, before and after a resume."""
    pages, port = [], free_port()

    class Look(nw.Callback):
        def on_evaluate(self, control):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("GET", "/metrics")
            pages.append(connection.getresponse().read().decode())
            connection.close()

    options = {"callbacks": [Look()], "metrics_port": port}
    run = nw.train(Faulty(), METHOD, workers=2, steps=60, folder=tmp_path / "run", checkpoint_every=20, **options)
    assert all('nowait_run_info{method="AsynchronousSGD",engine="processes"} 1' in page for page in pages)
    again = nw.resume(tmp_path / "run", Faulty(), steps=120, **options)
    assert sum(worker.gradients for worker in again.stats.by_worker) == 120
    for before, after in zip(run.stats.by_worker, again.stats.by_worker, strict=True):
        assert after.node == before.node == socket.gethostname()
        assert after.phases.computing >= before.phases.computing, "the other worker may have computed everything since"
        assert after.phases.total == pytest.approx(again.stats.seconds)
    computing = [sum(worker.phases.computing for worker in one.stats.by_worker) for one in (run, again)]
    assert computing[1] > computing[0]
    assert len(again.trace.placements) > 2, "processes were started again"
    loaded = nw.load(tmp_path / "run")
    assert loaded.stats.by_worker == again.stats.by_worker
    assert loaded.trace.placements == again.trace.placements
    assert not [thread for thread in threading.enumerate() if thread.name == "nowait-metrics"]
