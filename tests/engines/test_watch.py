"""A signal is never lost, wherever it comes."""

import contextlib
import gc
import signal

import pytest

import nowait as nw
from nowait.engines.watch import Watch


@pytest.fixture(autouse=True)
def handlers_as_before():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_raises_at_once_and_is_named(name):
    with pytest.raises(nw.Interrupted, match=f"{name} ended the work") as caught, Watch():
        signal.raise_signal(signal.Signals[name])
    assert (caught.value.signal, caught.value.run, caught.value.race) == (name, None, None)


class Dropping:
    """What a signal handler raises while this is freed is dropped by Python."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def press_in_a_finalizer():
    Dropping()
    gc.collect()


def press_in_a_finalizer_and_raise(error):
    press_in_a_finalizer()
    if error is not None:
        raise error


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_inside_a_finalizer_is_raised_at_the_next_check():
    watch = Watch()
    with contextlib.suppress(nw.Interrupted), watch:
        press_in_a_finalizer()
    with pytest.raises(nw.Interrupted):
        watch.check()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("error", [None, ValueError, SystemExit])
def test_a_signal_inside_a_finalizer_is_raised_at_the_end_of_the_block(error):
    with pytest.raises(nw.Interrupted), Watch():
        press_in_a_finalizer_and_raise(error)


def test_blocks_inside_each_other_end_together():
    with pytest.raises(nw.Interrupted), Watch(), Watch():
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Watch():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_without_a_signal_nothing_happens():
    with Watch() as watch:
        watch.check()
