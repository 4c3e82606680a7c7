"""Decisions about the hosts that connected: their names, who is lost, and what to tell the user."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography")

from nowait.fleet.sources.listen import HostTable, what_is_missing
from nowait.fleet.wire.messages import Joining
from nowait.fleet.wire.secure import ProtocolError

JOINING = Joining("1.2.3", "3.11", "abc", "a machine", 8)


def a_table():
    return HostTable(heartbeat_seconds=15.0, bytes_per_gradient=8)


def added(table, count=1):
    """Add hosts that have connected now."""

    def remote():
        return SimpleNamespace(number=-1, last_message=0.0, starts=0, first_start=math.inf, processes={})

    return [table.add(remote(), 0.0) for _ in range(count)]


def test_a_process_that_connects_again_replaces_its_earlier_connection():
    table = a_table()
    first, other, second = added(table, 3)
    assert table.joins(first, JOINING, 0.0) == []
    assert table.joins(other, Joining("1.2.3", "3.11", "def", "another", 1), 0.0) == []
    assert table.joins(second, JOINING, 0.0) == [first]
    assert {first.remote.number, other.remote.number, second.remote.number} == {1, 2, 3}


def test_the_processes_of_a_host_wait_for_it_to_come_back_once():
    table = a_table()
    first, other, second, third = added(table, 4)
    table.joins(first, JOINING, 0.0)
    table.joins(other, replace(JOINING, process="other"), 0.0)
    first.remote.processes = {7: 0}
    table.remove(first)
    table.remember_processes(first)
    table.takes_processes(other)
    assert other.remote.processes == {}
    table.joins(second, JOINING, 0.0)
    table.takes_processes(second)
    assert second.remote.processes == {7: 0}
    table.remove(second)
    table.joins(third, JOINING, 0.0)
    table.takes_processes(third)
    assert third.remote.processes == {}, "the server had let it go"


def test_several_hosts_of_one_machine_have_different_names():
    table = a_table()
    hosts = added(table, 5)
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
    [host] = added(table)
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
    idle, silent, good = added(table, 3)
    for process, host in (("s", silent), ("g", good)):
        table.joins(host, Joining("1.2.3", "3.11", process, process, 1), 0.0)
        table.is_ready(host)
    late = {}
    for tick in range(1, 40):
        idle.remote.last_message = good.remote.last_message = tick / 2
        for host, cause in table.overdue(tick / 2):
            late.setdefault(host.remote.number, (tick / 2, cause))
    assert late == {1: (10.5, "it did not join within 10 s"), 2: (15.5, "it was silent for 16 s")}


def test_a_host_may_be_silent_for_longer_if_its_gradients_are_large():
    table = HostTable(heartbeat_seconds=15.0, bytes_per_gradient=10**7)
    [host] = added(table)
    table.joins(host, JOINING, 0.0)
    table.is_ready(host)
    assert table.longest_silence(host) == 15.0
    host.remote.starts = 3
    assert table.longest_silence(host) == 45.0
    host.remote.starts = 100
    assert table.longest_silence(host) == 95.0, "it runs 8 workers at most"


def test_a_server_that_was_stopped_does_not_blame_its_hosts():
    """Race 9: their messages may be under way."""
    table = a_table()
    new, joined = added(table, 2)
    table.joins(joined, Joining("1.2.3", "3.11", "a", "a", 1), 0.0)
    table.is_ready(joined)
    assert table.overdue(0.0) == []
    assert table.overdue(100.0) == []
    assert table.overdue(100.25) == []
    late = [table.overdue(100.25 + tick / 2) for tick in range(1, 40)]
    assert [host for host, _ in late[20]] == [new], "ten seconds after the stop"
    assert [host for host, _ in late[-1]] == [new, joined]


def test_what_the_run_waits_for():
    assert what_is_missing(1, 2, 0, "here") == "there is room for 1 of 2 workers; connect more with: here"
    assert ", and 1 more host loads the problem;" in what_is_missing(1, 2, 1, "here")
