"""Decisions about the hosts that connected: their names, who is lost, and what to tell the user."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography")

from nowait.fleet.server.patience import Silence
from nowait.fleet.sources.listen import HostTable, what_is_missing
from nowait.fleet.wire.messages import Joining
from nowait.fleet.wire.secure import ProtocolError

JOINING = Joining("1.2.3", "3.11", "abc", "a machine", 8)


def a_table():
    return HostTable()


def added(table, count=1):
    """Add hosts that have connected now."""

    def remote():
        return SimpleNamespace(number=-1, last_message=0.0, starts=0, first_start=math.inf, processes={}, ready=False)

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
        host.remote.ready = True
    assert [host.name for host in hosts[:3]] == ["the host node7", "the host node7#2", "the host node7#3"]
    assert table.joins(hosts[3], replace(JOINING, name="node7", process="b"), 0.0) == [hosts[1]]
    table.remove(hosts[1])
    hosts[3].remote.ready = True
    assert hosts[3].label == "node7#2", "it keeps its name when it connects again"
    assert table.named("node7#2") == [hosts[3]]
    assert table.named("node7") == [hosts[0], hosts[2], hosts[3]], "the name of the machine means all of them"
    assert "node7 (8 workers), node7#3 (8 workers), node7#2 (8 workers)" in table.described()
    table.remove(hosts[0])
    table.joins(hosts[4], replace(JOINING, name="node7", process="d"), 0.0)
    assert hosts[4].label == "node7", "a name that is free is used again"


def test_a_host_joins_once_and_has_room_when_it_is_ready():
    table = a_table()
    [host] = added(table)
    table.joins(host, JOINING, 0.0)
    with pytest.raises(ProtocolError):
        table.joins(host, JOINING, 0.0)
    assert (table.capacity, table.loading) == (0, 1)
    host.remote.ready = True
    assert (table.capacity, table.loading) == (8, 0)
    table.remove(host)
    assert (table.capacity, table.loading) == (0, 0)


def test_hosts_that_do_not_join_are_lost():
    table, silence = a_table(), Silence(15.0)
    idle, waiting, joined = added(table, 3)
    table.joins(joined, JOINING, 0.0)
    waiting.waits_for = JOINING
    assert table.late_to_join(silence, 10.0) == []
    assert table.late_to_join(silence, 10.5) == [idle]


def test_a_server_that_was_stopped_does_not_blame_its_hosts():
    """Race 9: their messages may be under way."""
    table, silence = a_table(), Silence(15.0)
    [new] = added(table)
    for now in (0.0, 100.0):
        silence.look(now)
    assert table.late_to_join(silence, 110.0) == []
    assert table.late_to_join(silence, 110.5) == [new], "ten seconds after the stop"


def test_a_host_that_waited_long_for_its_answer_is_not_silent_when_it_gets_it():
    table = a_table()
    [host] = added(table)
    table.joins(host, JOINING, 100.0)
    assert (host.remote.last_message, host.remote.may_be_silent) == (100.0, False)


def test_what_the_run_waits_for():
    assert what_is_missing(1, 2, 0, "here") == "there is room for 1 of 2 workers; connect more with: here"
    assert ", and 1 more host loads the problem;" in what_is_missing(1, 2, 1, "here")
