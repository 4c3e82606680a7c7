"""What holds of a fleet whatever happens, in whatever order. ``World`` checks after every step."""

from hypothesis import given, settings
from hypothesis import strategies as st
from imagined import World

from nowait.fleet.server.events import Ended

STEPS = st.lists(st.integers(0, 10_000), min_size=10, max_size=100)
"""Each number picks one of the events that are possible then."""


@settings(max_examples=200)
@given(STEPS, st.booleans(), st.booleans(), st.booleans())
def test_a_number_never_has_two_processes_and_every_ticket_is_computed(steps, together, replace_hung, eager):
    """Also: no order for a worker without a process, no second one for a busy worker, and each is lost once."""
    world = World(together=together, replace_hung=replace_hung, eager=eager)
    for number in steps:
        world.step(number)


@settings(max_examples=200)
@given(STEPS, st.booleans(), st.booleans(), st.booleans())
def test_when_nothing_fails_any_more_all_wanted_workers_run(steps, together, replace_hung, eager):
    world = World(together=together, replace_hung=replace_hung, eager=eager)
    for number in steps:
        world.step(number)
    if not world.over:
        world.heal()
    if not world.over:
        assert sorted(world.fleet.members) == world.fleet.wanted() == sorted(world.joined)
        assert world.fleet.has_evaluator


@settings(max_examples=100)
@given(STEPS, STEPS, st.booleans())
def test_after_the_end_only_the_evaluator_is_started(before, after, replace_hung):
    world = World(replace_hung=replace_hung)
    for number in before:
        world.step(number)
    world.emit(Ended())
    for number in after:
        world.step(number)
    if not world.over:
        world.heal()
        assert world.over or world.fleet.has_evaluator
