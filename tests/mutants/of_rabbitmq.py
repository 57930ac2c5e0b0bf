"""Rules of the RabbitMQ plugin, switched off one by one. The patches import the driver, this list does not."""

from __future__ import annotations

from mutant import Mutant, replaced

from txcore.records import Status

TARGETS, LOGS, LOCKS = (f"plugins/rabbitmq/tests/test_{name}.py::" for name in ("targets", "logs", "locks"))


def mark_at_once(self, group, partition, op, future, deadline_s):
    """Send a mark before the ops that wait to be merged."""
    self._send_ops(group, partition, [op], [future.set_result], deadline_s)


def send_unasked(self, sending, unknown):
    """Store a half without asking the broker for its targets."""
    del unknown
    self._publisher.start(sending)


MUTANTS = [
    Mutant(
        "rabbitmq-lock-of-dead-node",
        "A lock that no live connection can hold is replaced by its substitute.",
        replaced("txcore_rabbitmq.locks:Locks", "_note_refusal", lambda _: lambda *_: None),
        LOCKS + "test_a_lock_that_is_refused_for_long_is_replaced",
    ),
    Mutant(
        "rabbitmq-refused-is-stored",
        "A target that no queue took is missing, and no op is written.",
        replaced(
            "txcore_rabbitmq.releasing:Releases",
            "record_ended",
            lambda ended: lambda self, number, *_: ended(self, number, Status.DURABLE, None),
        ),
        TARGETS + "test_a_queue_deleted_after_the_half_was_stored_is_refused",
        "rabbitmq",
    ),
    Mutant(
        "rabbitmq-mark-overtakes",
        "A mark comes after every op that was queued before it.",
        replaced("txcore_rabbitmq.releasing:Releaser", "mark", lambda _: mark_at_once),
        LOGS + "test_ops_share_records_and_a_tick_comes_alone_after_them",
        "rabbitmq",
    ),
    Mutant(
        "rabbitmq-targets-not-asked-for",
        "A half is stored only when its targets are known to exist.",
        replaced("txcore_rabbitmq.releasing:Releaser", "_send_when_found", lambda _: send_unasked),
        TARGETS + "test_missing_queue_and_missing_exchange_refuse_the_half",
        "rabbitmq",
    ),
]
