"""How long hosts may be silent, and how long to wait until the next is started or connects again."""

import math

import pytest

from nowait.fleet.server.patience import LONGEST_NODE_PAUSE, STEADY_SECONDS, BackOff, Pauses, Silence, Wait


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def pauses(back_off, clock, node, lose, times):
    """How long a node is paused after each of so many losses in a row."""
    found = []
    for _ in range(times):
        clock.now = 0.0
        lose()
        while node in back_off.paused():
            clock.now = round(clock.now + 0.05, 2)
        found.append(clock.now)
    return found


def test_hosts_that_are_of_no_use_make_the_pause_of_their_node_double():
    clock = Clock()
    back_off = BackOff(clock)
    found = pauses(back_off, clock, "bad", lambda: back_off.lost("bad"), times=9)
    assert found == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, LONGEST_NODE_PAUSE, LONGEST_NODE_PAUSE]


def test_a_pause_is_that_of_one_node():
    clock = Clock()
    back_off = BackOff(clock)
    for _ in range(20):
        back_off.lost("bad")
    assert back_off.paused() == {"bad"}
    back_off.lost("good", delivered=True)
    assert back_off.paused() == {"bad", "good"}
    assert back_off.next_end() == 0.1
    clock.now = 0.15
    assert back_off.paused() == {"bad"}
    assert back_off.next_end() == LONGEST_NODE_PAUSE
    clock.now = LONGEST_NODE_PAUSE + 0.1
    assert back_off.paused() == frozenset()
    assert back_off.next_end() == math.inf


@pytest.mark.parametrize("use", [{"delivered": True}, {"ready_seconds": STEADY_SECONDS}], ids=str)
def test_a_host_that_was_of_use_ends_the_doubling(use):
    clock = Clock()
    back_off = BackOff(clock)
    for _ in range(20):
        assert not back_off.lost("node", ready_seconds=STEADY_SECONDS - 1)
    assert back_off.lost("node", **use)
    assert pauses(back_off, clock, "node", lambda: back_off.lost("node", **use), times=3) == [0.1, 0.1, 0.1]


def test_an_overflow_of_failures_is_still_the_longest_pause():
    clock = Clock()
    back_off = BackOff(clock)
    for _ in range(5_000):
        back_off.lost("node")
    clock.now = LONGEST_NODE_PAUSE
    assert back_off.paused() == frozenset()


def test_with_a_host_killed_every_five_seconds_the_others_work_on():
    """The hosts of one node never come up; those of the other are killed every 5 s, after having delivered."""
    clock, tick = Clock(), 0.05
    back_off = BackOff(clock)
    starting, working = 2.0, 0.0
    began = None
    for number in range(round(100 / tick)):
        clock.now = number * tick
        if "bad" not in back_off.paused():
            back_off.lost("bad")
        if began is None and "good" not in back_off.paused():
            began = clock.now
        if began is not None and clock.now - began >= starting:
            working += tick
            if number % round(5 / tick) == 0:
                back_off.lost("good", ready_seconds=clock.now - began - starting, delivered=True)
                began = None
    assert working > 50.0, "3 of 5 seconds are left of a host that takes 2 to start"


def test_pauses_double_up_to_a_limit_and_differ_by_chance():
    pauses = Pauses()
    assert [round(pauses.next(1.0), 1) for _ in range(9)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0]
    assert pauses.next(0.0) == 7.5
    pauses.reset()
    assert pauses.next(0.0) == 0.1


def test_nobody_may_be_silent_for_ever_however_large_its_gradients_are():
    silence = Silence(15.0)
    assert silence.longest(0.0) == 15.0
    assert silence.longest(1e12) == 615.0


def test_a_server_that_was_suspended_counts_silence_from_then_on():
    silence = Silence(15.0)
    for now in (0.0, 1.0, 100.0):
        silence.look(now)
    assert silence.seconds(0.5, 101.0) == 1.0
    assert silence.seconds(100.9, 101.0) == pytest.approx(0.1)


def test_a_run_without_workers_warns_from_time_to_time():
    wait = Wait(0.0)
    assert [now for now in range(40) if wait.is_due(now)] == [11, 22, 33]
    wait.ended(40.0)
    assert wait.seconds(45.0) == 5.0
    assert not wait.is_due(50.0)
    assert wait.is_due(50.1)
