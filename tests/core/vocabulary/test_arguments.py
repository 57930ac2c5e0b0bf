"""An argument of a wrong type is refused by the constructor that received it, which names the argument."""

from __future__ import annotations

import numpy as np
import pytest

from txcore import (
    AsyncTransactionListener,
    AsyncTransactionProducer,
    Checker,
    CheckPolicy,
    ConfigError,
    Limits,
    Operator,
    RelayLimits,
    TransactionListener,
    TransactionProducer,
    UsageError,
    connect,
)


class Listener(TransactionListener):
    """Is asked nothing here."""

    def execute(self, transaction, message, arg):
        """Never called."""


class AsyncListener(AsyncTransactionListener):
    """Is asked nothing here."""

    async def execute(self, transaction, message, arg):
        """Never called."""


def producer(opened, **arguments):
    return TransactionProducer(**{"backend": opened, "group": "orders"} | arguments)


def asynchronous(opened, **arguments):
    return AsyncTransactionProducer(**{"backend": opened, "group": "orders"} | arguments)


def checker(opened, **arguments):
    return Checker(**{"backend": opened, "group": "orders", "listener": Listener()} | arguments)


def operator(opened, **arguments):
    return Operator(**{"backend": opened, "group": "orders"} | arguments)


COMMON = [
    ("backend", "memory://"),
    *(("group", name) for name in ("", None, b"orders", "orders\n", " orders", "ord\x00ers")),
]
SERVING = [("fence", object()), ("policy", 6.0), ("plugins", object()), ("plugins", "tracing"), ("listener", Listener)]
WRONG = [
    *((make, *each) for make in (producer, asynchronous, checker, operator) for each in COMMON),
    *((make, *each) for make in (producer, asynchronous, checker) for each in SERVING),
    *((make, "partition_count", value) for make in (producer, asynchronous) for value in (0, "4")),
    (producer, "busy_timeout_s", "10"),
    (producer, "listener", AsyncListener()),
    (asynchronous, "listener", Listener()),
    (checker, "listener", object()),
    (checker, "limits", RelayLimits()),
    (operator, "by", None),
]


@pytest.mark.parametrize(("make", "argument", "value"), WRONG)
def test_an_argument_of_a_wrong_type_is_named(make, argument, value):
    """The error's text begins with the argument, and its key is the argument."""
    with connect("memory://") as backend, pytest.raises(ConfigError, match=f"^{argument} ") as caught:
        make(backend, **{argument: value})
    assert argument == caught.value.key


def test_a_relay_names_its_arguments():
    """The relay refuses the checker's limits, and a group without a name, before it looks at its engine."""
    relay = pytest.importorskip("txcore.outbox.relay").Relay
    with connect("memory://") as backend:
        for arguments, argument in (({"limits": Limits()}, "limits"), ({"group": ""}, "group")):
            with pytest.raises(ConfigError, match=f"^{argument} "):
                relay(**{"backend": backend, "group": "orders", "engine": None} | arguments)


def test_a_url_of_another_type_is_a_configuration_error():
    """`connect` names its argument when it is no text."""
    with pytest.raises(ConfigError, match="backend URL"):
        connect(7)


def test_items_and_handles_of_another_type_are_named():
    """A message without its argument, and bytes as a handle, are the caller's mistakes, with a sentence each."""
    with connect("memory://") as backend:
        made = producer(backend, listener=Listener())
        with pytest.raises(UsageError, match=r"pairs \(message, arg\), not str"):
            made.send_many(["message"])
        with pytest.raises(UsageError, match="not bytes"):
            made.attach(b"handle")


@pytest.mark.parametrize("number", [np.float64(2.0), np.float32(2.0), np.int64(2)])
def test_numbers_of_numpy_are_numbers(number):
    """A policy made from a table of figures takes them as they are; a count must still be whole."""
    assert CheckPolicy(immunity_s=number).immunity_s == 2.0
    with pytest.raises(ConfigError, match="check_max is a whole number"):
        CheckPolicy(check_max=np.float64(2.0))
    assert CheckPolicy(check_max=np.int64(2)).check_max == 2
