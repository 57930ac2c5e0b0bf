"""The circuit breaker opens after failures in a row, lets one probe through, and closes after a success."""

from __future__ import annotations

import pytest

from txcore.runtime.circuit_breaker import CircuitBreaker, Switch


class HandClock:
    """A clock that moves only when it is advanced."""

    now_s = 100.0

    def wall_ms(self):
        return 0

    def elapsed_s(self):
        return self.now_s

    def boot_id(self):
        return ""


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def breaker(clock):
    return CircuitBreaker(clock, probe_s=4.0, failures_max=3, pause_first_s=1.0, pause_max_s=5.0)


def opened(breaker):
    """Open the breaker by three failures, and return their results."""
    return [breaker.failed() for _ in range(3)]


def test_it_opens_after_failures_in_a_row_and_says_so_once(breaker):
    """The breaker opens after failures in a row and reports it once; a success before that resets the count."""
    breaker.failed()
    breaker.failed()
    assert (breaker.succeeded(), breaker.may_try(), breaker.is_open) == (None, True, False)
    assert opened(breaker) == [None, None, Switch(is_open=True)]
    assert (breaker.is_open, breaker.may_try()) == (True, False)


def test_one_probe_at_a_time_is_made_after_the_pause(breaker, clock):
    """After the pause, one transaction at a time is a probe; the others continue without the broker."""
    opened(breaker)
    clock.now_s += 1.0
    assert [breaker.may_try() for _ in range(3)] == [True, False, False]
    assert breaker.succeeded() == Switch(is_open=False)
    assert [breaker.may_try() for _ in range(3)] == [True, True, True]


def test_pause_doubles_with_each_probe_that_fails(breaker, clock):
    """The pause doubles with each failed probe, up to its bound."""
    opened(breaker)
    for pause_s in (1.0, 2.0, 4.0, 5.0, 5.0):
        clock.now_s += pause_s - 0.1
        assert not breaker.may_try()
        clock.now_s += 0.2
        assert breaker.may_try()
        assert breaker.failed() is None


def test_failures_that_were_under_way_when_it_opened_lengthen_nothing(breaker, clock):
    """Only the failure of a probe lengthens the pause of an open breaker."""
    opened(breaker)
    for _ in range(20):
        breaker.failed()
    clock.now_s += 1.0
    assert breaker.may_try()


def test_probe_that_never_ends_is_replaced(breaker, clock):
    """A probe without a result is replaced after its time, because its caller may have died."""
    opened(breaker)
    clock.now_s += 1.0
    assert breaker.may_try()
    clock.now_s += 3.9
    assert not breaker.may_try()
    clock.now_s += 0.2
    assert breaker.may_try()
