"""Events are logged by constant names and handed to plugins; a failing plugin stops no caller."""

from __future__ import annotations

import logging

import pytest

from txcore import Checker, CheckPolicy, LocalTransactionState, Message, TransactionListener, TransactionProducer
from txcore.hookspecs import Event, hookimpl
from txcore.memory import MemoryBackend, MemoryBroker
from txcore.runtime import instrumentation as names
from txcore.runtime.instrumentation import Reporter


class Observer:
    """A plugin that keeps events and discards."""

    def __init__(self):
        self.events: list[Event] = []
        self.discards = []

    @hookimpl
    def txcore_on_event(self, event):
        self.events.append(event)

    @hookimpl
    def txcore_on_discard(self, half, reason):
        self.discards.append((half, reason))


class Failing:
    """A plugin that raises on every call."""

    @hookimpl
    def txcore_on_event(self, event):
        raise RuntimeError("metrics are down")

    @hookimpl
    def txcore_on_discard(self, half, reason):
        raise RuntimeError("metrics are down")


class Undecided(TransactionListener):
    def check_local_transaction(self, half):
        return LocalTransactionState.UNKNOWN


def test_an_event_reaches_every_plugin():
    """Each plugin gets an event with its name and facts."""
    first, second = Observer(), Observer()
    Reporter("txcore.test", [first, second]).event(names.HALF_FINISHED, end="COMMIT")
    assert [Event("half.finished", {"end": "COMMIT"})] == first.events == second.events


def test_failing_plugin_is_logged_and_stops_no_caller(caplog):
    """A failing plugin is logged, does not stop the caller, and is called again the next time."""
    reporter = Reporter("txcore.test", [Failing()])
    with caplog.at_level(logging.WARNING, "txcore.test"):
        reporter.event(names.HALF_FINISHED)
        reporter.discard(None, "poison")
    assert [("plugin.failed", "txcore_on_event"), ("plugin.failed", "txcore_on_discard")] == [
        (record.message, record.txcore["hook"]) for record in caplog.records
    ]


@pytest.mark.parametrize(
    ("name", "level"), [(names.OP_CONFLICT, logging.WARNING), (names.HALF_FINISHED, logging.DEBUG)]
)
def test_alerts_are_warnings(caplog, name, level):
    """Alerts are warnings and the rest is for debugging; the message is the event's name, with the facts beside it."""
    with caplog.at_level(logging.DEBUG, "txcore.test"):
        Reporter("txcore.test").event(name, partition=3)
    assert [(name, level, {"partition": 3})] == [(each.message, each.levelno, each.txcore) for each in caplog.records]


def test_event_names_are_dotted_and_different():
    """Each event name is dotted, in lower case, and used once."""
    made = [value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)]
    assert len(set(made)) == len(made)
    assert all("." in name and name == name.lower() for name in made)


def test_a_checker_reports_what_it_does_to_its_plugins():
    """A discard is an event, a call of its own hook, and an alert in the log."""

    class Quick(MemoryBackend):
        capabilities = property(
            lambda self: type(self.broker.profile.capabilities)(
                **{
                    field: getattr(self.broker.profile.capabilities, field)
                    for field in self.broker.profile.capabilities.__dataclass_fields__
                }
                | {"release_time_max_s": 0.0005}
            ),
            lambda self, value: None,
        )

    backend = Quick(MemoryBroker())
    policy = CheckPolicy(immunity_s=0.001, interval_s=0.001, check_max=1)
    producer = TransactionProducer(backend, "g", policy=policy, partition_count=1)
    transaction = producer.begin()
    transaction.publish(Message("t", b"body"))
    transaction.prepare()
    observer = Observer()
    checker = Checker(backend, "g", listener=Undecided(), policy=policy, plugins=[Failing(), observer])
    while not observer.discards:
        checker.run_once()
    checker.stop()
    ((half, reason),) = observer.discards
    assert transaction.transaction_id == half.transaction_id
    assert "1 checks were answered UNKNOWN" == reason
    seen = {event.name for event in observer.events}
    assert {names.CHECKER_ASSIGNED, names.CHECKER_CLAIMED, names.CHECK_ANSWERED, names.HALF_PARKED} <= seen
