"""Which versions of params a host has: nothing is sent twice, and no worker computes at another point than its own."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nowait.fleet.server.vectors import HostPoints


def test_a_version_that_another_worker_has_is_not_sent_again():
    points = HostPoints()
    assert points.place(worker=0, version=3) == (0, True)
    assert points.place(worker=1, version=3) == (0, False)
    assert points.place(worker=2, version=4) == (1, True)
    assert points.place(worker=0, version=4) == (1, False)
    assert points.place(worker=1, version=4) == (1, False)
    assert points.place(worker=1, version=3) == (0, False), "nobody used it, but it was still there"
    assert points.place(worker=1, version=5) == (0, True)
    assert points.place(worker=1, version=3) == (0, True), "its slot was used for version 5"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=60))
def test_every_worker_has_its_own_point_until_its_next_order(orders):
    points, slots, wanted = HostPoints(), {}, {}
    for worker, version in orders:
        slot, missing = points.place(worker, version)
        wanted.pop(worker, None)
        if missing:
            assert version not in [slots[used] for used, _ in wanted.values()], "somebody has it already"
            slots[slot] = version
        wanted[worker] = (slot, version)
        assert all(slots[used] == right for used, right in wanted.values())
        assert len(slots) <= len({worker for worker, _ in orders})
