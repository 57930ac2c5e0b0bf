"""The shop's own test of its most important promise."""

from collections.abc import Callable

import pytest
from crashes import PlaceOrder, WithABug


def test_an_order_and_its_message_are_both_there_or_neither(txcore_crash: Callable[..., object]) -> None:
    """An order is in the database if and only if its message is in the topic, at every point of a kill."""
    txcore_crash(PlaceOrder)


def test_the_bug_is_found(txcore_crash: Callable[..., object]) -> None:
    """The report names an order without a message."""
    with pytest.raises(pytest.fail.Exception, match="LOST order 1"):
        txcore_crash(WithABug)
