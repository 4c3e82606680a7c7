"""How hosts join: key files, and decisions about hosts and their processes."""

from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

import nowait as nw
from nowait.engines.listen.pauses import Pauses
from nowait.fleet.preparing import prepare_to_listen
from nowait.engines.listen.table import HostTable, what_is_missing
from nowait.engines.network.adoption import Adoption
from nowait.fleet.wire.messages import Joining
from nowait.fleet.wire.records import REPORT
from nowait.fleet.wire.secure import ProtocolError, read_drain_key, read_server_key

JOINING = Joining("1.2.3", "3.11", "abc", "a machine", 8)


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
