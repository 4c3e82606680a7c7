"""How hosts join: messages, key files, the source code and the job that travel, and decisions about hosts."""

import json
import os
import sys
from dataclasses import replace
from types import ModuleType

import pytest

pytest.importorskip("cryptography")

import nowait as nw
from nowait.engines.fingerprint import Fingerprint
from nowait.engines.listen.joining import PIECE_BYTES, PIECE_REQUEST, Joining, Part, Welcome
from nowait.engines.listen.pauses import Pauses
from nowait.engines.listen.preparing import prepare_to_listen
from nowait.engines.listen.sources import to_bytes, user_sources, write_sources
from nowait.engines.listen.table import HostTable, what_is_missing
from nowait.engines.listen.transfer import Download, Offer, Requests
from nowait.engines.network.adoption import Adoption
from nowait.engines.network.secure import ProtocolError, read_drain_key, read_server_key
from nowait.engines.network.shapes import Shapes
from nowait.engines.processes.payload import Payload
from nowait.engines.workers.records import REPORT

SHAPES = Shapes((10, "<f8"), (24, "|u1"), encoded=True)
JOINING = Joining("1.2.3", "3.11", "abc", "a machine", 8)
PRINT = {"size": 5, "dtype": "float64", "gradient_norm": 1.0, "direction": [0.5] * 8}


# Messages


def test_a_host_says_who_it_is_and_the_server_what_it_needs():
    welcome = Welcome("run", SHAPES, (Part("12", (3, 4), 128),))
    assert Joining.read(JOINING.to_bytes()) == JOINING
    own = replace(JOINING, problem=Fingerprint(5, "float64", 1.5, (0.5,) * 8))
    assert Joining.read(own.to_bytes()) == own
    assert Welcome.read(welcome.to_bytes()) == welcome


@pytest.mark.parametrize(
    "changes",
    [
        {"workers": 0},
        {"workers": True},
        {"workers": "8"},
        {"workers": 2**40},
        {"name": ""},
        {"name": "x" * 1000},
        {"name": "two\nlines"},
        {"process": None},
        {"nowait": 3},
        {"problem": 3},
        {"problem": {"size": 0, "dtype": "float64", "gradient_norm": 1.0, "direction": [0.5] * 8}},
        {"problem": PRINT | {"gradient_norm": -1.0}},
        {"problem": PRINT | {"gradient_norm": float("nan")}},
        {"problem": PRINT | {"direction": None}},
        {"problem": PRINT | {"direction": [0.5] * 7}},
        {"problem": PRINT | {"direction": [0.5] * 7 + [float("inf")]}},
        {"problem": PRINT | {"gradient_norm": None}},
    ],
    ids=str,
)
def test_a_host_that_says_something_else_is_in_error(changes):
    content = json.dumps(json.loads(JOINING.to_bytes()) | changes).encode()
    with pytest.raises(ProtocolError):
        Joining.read(content)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"a": "' + b"x" * 200_000 + b'"}'])
def test_what_is_not_json_with_entries_is_in_error(content):
    for kind in (Joining, Welcome):
        with pytest.raises(ProtocolError):
            kind.read(content)


@pytest.mark.parametrize(
    "changes",
    [
        {"shapes": None},
        {"shapes": [[10, "<f8"], [5, "<f8"]]},
        {"shapes": [[10, "<f8"], [5, "nonsense"], False]},
        {"shapes": [[0, "<f8"], [5, "<f8"], False]},
        {"shapes": [[10.5, "<f8"], [5, "<f8"], False]},
        {"parts": 3},
        {"parts": [{"sizes": [-1]}]},
    ],
    ids=str,
)
def test_a_wrong_welcome_is_in_error(changes):
    content = json.loads(Welcome("run", SHAPES, ()).to_bytes()) | changes
    with pytest.raises(ProtocolError):
        Welcome.read(json.dumps(content).encode())


def test_other_versions_are_refused_with_both_named():
    assert JOINING.reason_to_refuse("1.2.3", "3.11") == ""
    reason = JOINING.reason_to_refuse("1.2.4", "3.11")
    assert "1.2.3" in reason
    assert "1.2.4" in reason
    reason = JOINING.reason_to_refuse("1.2.3", "3.12")
    assert "3.11" in reason
    assert "3.12" in reason


# Key files


def test_the_drain_key_is_a_second_file_and_a_run_goes_on_without_it(tmp_path, caplog, monkeypatch):
    listen = nw.Listen(port=0, host="127.0.0.1", key_file=tmp_path / "key")
    prepare_to_listen(listen)
    key, drain_key = read_server_key(tmp_path / "key"), read_drain_key(tmp_path / "key")
    assert len(drain_key) == 32
    assert drain_key not in (key.secret, key.private.private_bytes_raw())
    assert "key: workers need a copy of it, and must not get" in caplog.text
    assert f"made the drain key file {tmp_path / 'key.drain'}: nowait drain needs it, workers do not" in caplog.text
    (tmp_path / "key.drain").unlink()
    with pytest.raises(FileNotFoundError, match=r"no drain key file .*key\.drain: the server makes it"):
        read_drain_key(tmp_path / "key")
    (tmp_path / "key.drain").symlink_to(tmp_path / "missing" / "folder")
    prepare_to_listen(listen)
    assert "nowait drain cannot be used for this run" in caplog.text


# Source code


def a_module(name, file, *, package=False):
    module = ModuleType(name)
    module.__file__ = str(file)
    if package:
        module.__path__ = [str(file.parent)]
    return module


def test_the_users_own_modules_are_sent_and_written(tmp_path):
    files = {"mine.py": b"A = 1\n", "pack/__init__.py": b"", "pack/inner.py": b"# \xff\n"}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "script.py").write_bytes(b"")
    (tmp_path / "target" / "numba.dist-info").mkdir(parents=True)
    (tmp_path / "target" / "lib").mkdir()
    (tmp_path / "target" / "lib" / "__init__.py").write_bytes(b"")
    modules = {
        "mine": a_module("mine", tmp_path / "mine.py"),
        "pack": a_module("pack", tmp_path / "pack" / "__init__.py", package=True),
        "pack.inner": a_module("pack.inner", tmp_path / "pack" / "inner.py"),
        "__main__": a_module("__main__", tmp_path / "script.py"),
        "renamed": a_module("renamed", tmp_path / "mine.py"),
        "gone": a_module("gone", tmp_path / "gone.py"),
        "lib": a_module("lib", tmp_path / "target" / "lib" / "__init__.py", package=True),
        "nowait": nw,
        "json": json,
        "pytest": pytest,
        "builtins": sys.modules["builtins"],
    }
    sources = user_sources(modules)
    assert sources == files
    target = tmp_path / "there"
    assert write_sources(to_bytes(sources), target) == 3
    assert {name: (target / name).read_bytes() for name in files} == files


@pytest.mark.parametrize("name", ["/etc/x.py", "../x.py", "a/../../x.py", "x.so", "x"])
def test_source_code_is_written_nowhere_else(tmp_path, name):
    with pytest.raises(ProtocolError):
        write_sources(to_bytes({name: b""}), tmp_path)
    assert list(tmp_path.iterdir()) == []


# The job


@pytest.fixture
def payloads():
    large = os.urandom(2 * PIECE_BYTES + 100)
    made = [Payload([memoryview(b"code")]), Payload([memoryview(b"pickle"), memoryview(large), memoryview(b"")])]
    yield made
    for payload in made:
        payload.close()


def transferred(offer, missing, tamper=lambda piece: piece):
    """Let a host ask for parts; returns its download and the requests."""
    waiting, requests = [], []
    checks = Requests()
    download = Download(missing, waiting.append)
    download.begin()
    while not download.complete:
        requests.append(checks.read(waiting.pop(0)))
        download.received(tamper(offer.piece(requests[-1])))
    return download, requests


def test_the_job_travels_in_pieces_that_the_host_asks_for(payloads):
    offer = Offer(payloads)
    download, requests = transferred(offer, list(enumerate(offer.parts)))
    assert requests == [(0, 0), (1, 0), (1, PIECE_BYTES), (1, 2 * PIECE_BYTES)]
    for number, payload in enumerate(payloads):
        assert download.payloads[number].sizes == payload.sizes
        assert [bytes(part) for part in download.payloads[number].parts()] == [bytes(part) for part in payload.parts()]
    download.close()


def test_only_missing_parts_are_asked_for(payloads):
    offer = Offer(payloads)
    assert transferred(offer, [])[1] == []
    download, requests = transferred(offer, [(0, offer.parts[0])])
    assert requests == [(0, 0)]
    download.close()


def test_a_job_that_was_altered_is_not_used(payloads):
    offer = Offer(payloads)
    with pytest.raises(ProtocolError, match="digest"):
        transferred(offer, [(0, offer.parts[0])], tamper=lambda piece: piece[:-1] + b"!")
    with pytest.raises(ProtocolError, match="bytes"):
        transferred(offer, [(0, offer.parts[0])], tamper=lambda piece: piece[:-1])
    with pytest.raises(ProtocolError, match="not asked for"):
        transferred(offer, [(0, offer.parts[0])], tamper=lambda piece: PIECE_REQUEST.pack(1, 0) + piece[16:])


@pytest.mark.parametrize("request_", [(2, 0), (-1, 0), (0, -PIECE_BYTES), (0, 2**50), (1, 7)])
def test_a_host_cannot_ask_for_what_there_is_not(payloads, request_):
    offer = Offer(payloads)
    with pytest.raises(ProtocolError):
        offer.piece(Requests().read(PIECE_REQUEST.pack(*request_)))


def test_a_host_cannot_ask_for_the_same_piece_again():
    requests = Requests()
    requests.read(PIECE_REQUEST.pack(0, 0))
    requests.read(PIECE_REQUEST.pack(1, PIECE_BYTES))
    for wrong in [PIECE_REQUEST.pack(1, PIECE_BYTES), PIECE_REQUEST.pack(0, 0), b"", b"x" * 17]:
        with pytest.raises(ProtocolError):
            requests.read(wrong)


# Hosts


def a_table():
    return HostTable(heartbeat_seconds=15.0, bytes_per_gradient=8)


def test_a_process_that_connects_again_replaces_its_earlier_connection():
    table = a_table()
    first, other, second = (table.add(name, 0.0) for name in (b"1", b"2", b"3"))
    assert table.joins(first, JOINING, 0.0) == []
    assert table.joins(other, Joining("1.2.3", "3.11", "def", "another", 1), 0.0) == []
    assert table.joins(second, JOINING, 0.0) == [first]
    assert len({first.place, other.place, second.place}) == 3


def test_several_hosts_of_one_machine_have_different_names():
    table = a_table()
    hosts = [table.add(str(number).encode(), 0.0) for number in range(5)]
    for process, host in zip("abc", hosts, strict=False):
        table.joins(host, replace(JOINING, name="node7", process=process), 0.0)
        table.is_ready(host)
    assert [host.name for host in hosts[:3]] == ["the host node7", "the host node7#2", "the host node7#3"]
    assert table.joins(hosts[3], replace(JOINING, name="node7", process="b"), 0.0) == [hosts[1]]
    table.remove(hosts[1])
    table.is_ready(hosts[3])
    assert hosts[3].label == "node7#2", "it keeps its name when it connects again"
    assert table.named("node7#2") == [hosts[3]]
    assert table.named("node7") == [hosts[0], hosts[2], hosts[3]], "the name of the machine means all of them"
    assert "node7 (8 workers), node7#3 (8 workers), node7#2 (8 workers)" in table.described()
    table.remove(hosts[0])
    table.joins(hosts[4], replace(JOINING, name="node7", process="d"), 0.0)
    assert hosts[4].label == "node7", "a name that is free is used again"


def test_a_host_joins_once_and_before_it_offers_workers():
    table = a_table()
    host = table.add(b"1", 0.0)
    with pytest.raises(ProtocolError):
        table.is_ready(host)
    table.joins(host, JOINING, 0.0)
    with pytest.raises(ProtocolError):
        table.joins(host, JOINING, 0.0)
    assert (table.capacity, table.loading) == (0, 1)
    table.is_ready(host)
    assert (table.capacity, table.loading) == (8, 0)
    table.remove(host)
    assert (table.capacity, table.loading) == (0, 0)


def test_hosts_that_do_not_join_or_are_silent_are_lost():
    table = a_table()
    idle, silent, good = (table.add(name, 0.0) for name in (b"1", b"2", b"3"))
    for process, host in (("s", silent), ("g", good)):
        table.joins(host, Joining("1.2.3", "3.11", process, process, 1), 0.0)
        table.is_ready(host)
    heard = {b"1": 0.0, b"2": 0.0, b"3": 0.0}
    found = {}
    for tick in range(1, 40):
        heard[b"1"] = heard[b"3"] = tick / 2
        for host, cause in table.overdue(heard.__getitem__, tick / 2):
            found.setdefault(host.identity, (tick / 2, cause))
    assert found == {b"1": (10.5, "it did not join within 10 s"), b"2": (15.5, "it was silent for 16 s")}
    assert idle.place != good.place


def test_a_server_that_was_stopped_does_not_blame_its_hosts():
    table = a_table()
    new, joined = table.add(b"1", 0.0), table.add(b"2", 0.0)
    table.joins(joined, Joining("1.2.3", "3.11", "a", "a", 1), 0.0)
    table.is_ready(joined)
    assert table.overdue(lambda identity: 0.0, 0.0) == []
    assert table.overdue(lambda identity: 0.0, 100.0) == []
    assert table.overdue(lambda identity: 0.0, 100.25) == [], "their messages may be under way"
    found = [table.overdue(lambda identity: 0.0, 100.25 + tick / 2) for tick in range(1, 40)]
    assert [host for host, _ in found[20]] == [new], "ten seconds after the stop"
    assert [host for host, _ in found[-1]] == [new, joined]


def test_what_the_run_waits_for():
    assert what_is_missing(1, 2, 0, "here") == "there is room for 1 of 2 workers; connect more with: here"
    assert ", and 1 more host loads the problem;" in what_is_missing(1, 2, 1, "here")


def test_pauses_double_up_to_a_limit_and_differ_by_chance():
    pauses = Pauses()
    assert [round(pauses.next(1.0), 1) for _ in range(9)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0]
    assert pauses.next(0.0) == 7.5
    pauses.reset()
    assert pauses.next(0.0) == 0.1


# Processes that are adopted


def reports(*tickets):
    return b"".join(REPORT.pack(ticket, 0.0, 0.0, worker, 0) for worker, ticket in tickets)


def test_a_process_is_adopted_under_its_new_serial_number():
    processes = Adoption()
    processes.started(11)
    assert (processes.serial_here(11), processes.died(12)) == (11, None)
    processes.offer({0: 11})
    assert processes.serial_here(11) is None, "the new connection does not know it"
    assert processes.adopt(0, 21)
    assert not processes.adopt(0, 22), "only once"
    assert (processes.serial_here(21), processes.died(11)) == (11, 21)


def test_processes_that_nobody_adopts_are_given_up_once():
    processes = Adoption()
    processes.offer({0: 11, 1: 12, 2: 13})
    assert processes.not_adopted(1e9) == []
    processes.wait_until(10.0)
    processes.adopt(0, 21)
    assert processes.died(13) is None
    assert processes.not_adopted(9.0) == []
    assert processes.not_adopted(10.0) == [(1, 12)]
    assert processes.not_adopted(11.0) == []
    assert processes.died(12) is None


def test_reports_on_orders_of_the_earlier_connection_are_dropped():
    processes = Adoption()
    processes.offer({0: 11, 1: 12})
    processes.adopt(0, 21)
    assert processes.wanted(reports((0, 5), (1, 6), (2, 7))) == reports((2, 7))
    assert processes.wanted(reports((0, -3))) == reports((0, -3)), "the numbers of audits are used once"
    processes.ordered(0, 8)
    processes.ordered(0, 9)
    assert processes.wanted(reports((0, 5))) == b""
    assert processes.wanted(reports((0, 8), (0, 8))) == reports((0, 8), (0, 8))
    assert list(processes.uncertain) == [1]


# Arguments


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"port": 70_000}, ValueError),
        ({"port": -1}, ValueError),
        ({"port": "7070"}, ValueError),
        ({"host": ""}, TypeError),
        ({"key_file": b"the key itself"}, TypeError),
        ({"encrypt": 1}, TypeError),
        ({"start_seconds": 0}, ValueError),
        ({"heartbeat_seconds": 1}, ValueError),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_without_showing_a_key(wrong, error):
    with pytest.raises(error) as caught:
        nw.Listen(**{"port": 7070, "key_file": "key"} | wrong)
    assert "the key itself" not in str(caught.value)


def test_the_description_of_a_run_has_no_key():
    listen = nw.Listen(port=7070, key_file="the-key-file", workers=(2, 4))
    assert listen.described() == {
        "type": "Listen",
        "port": 7070,
        "host": "0.0.0.0",
        "encrypt": True,
        "start_seconds": None,
        "heartbeat_seconds": 15.0,
        "wire": None,
        "points_wire": None,
    }


def test_workers_are_given_once_or_twice_the_same(tmp_path):
    engine = nw.Listen(port=0, key_file=tmp_path / "key", workers=(2, 4))
    with pytest.raises(ValueError, match=r"workers=3 differs from nw.Listen\(workers=\(2, 4\)\)"):
        nw.train(
            nw.problems.NoisyQuadratic(dimension=2), nw.AsynchronousSGD(nw.Constant(0.1)), workers=3, engine=engine
        )
