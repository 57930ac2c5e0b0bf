"""The service's database is restored to an earlier point, while the broker keeps all it has."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import text

import txcore
from txcore.fence import FenceAnswer
from txcore.records import ParkCode

TOPIC = "orders.created"


def test_restored_database_rolls_back_what_was_undecided(shop):
    """An undecided order that the restore removed is rolled back; a sent message stays, without its order."""
    with shop.running() as service:
        service.order("before")
        crashed = service.order("before, crashed", dies=True)
    shop.copy("shop.db")
    with shop.running() as service:
        service.order("after")
        gone = service.order("after, crashed", dies=True)
    shop.restore("shop.db")
    with shop.running() as service:
        service.check()
        assert service.orders() == {"before", "before, crashed"}
        assert (service.row(crashed), service.row(gone)) == (FenceAnswer.COMMIT, FenceAnswer.ROLLBACK)
    assert shop.messages() == ["before", "after", "before, crashed"]


def test_restored_message_table_rows_are_sent_again_with_their_ids(shop):
    """Rows of the message table that were sent after the copy come back, and the inbox drops the second messages."""
    with shop.running() as service:
        service.order("tea", mode="table")
    shop.copy("shop.db")
    with shop.running() as service:
        assert service.relay() == 1
        service.order("milk", mode="table")
    shop.receive()
    shop.restore("shop.db")
    with shop.running() as service:
        assert service.relay() == 1
        assert service.orders() == {"tea"}
    shop.receive()
    assert shop.messages() == ["tea", "tea"]
    assert len(set(shop.ids())) == 1
    assert shop.mails() == ["tea"]


def test_dropped_message_is_sent_after_its_row_was_restored(strict_shop):
    """A message that an operator dropped after the copy waits again, and the relay sends it."""
    with strict_shop.running() as service:
        service.backend.create_topic(TOPIC)
        identity = service.order("tea", mode="table")
    strict_shop.copy("shop.db")
    strict_shop.delete_topic()
    with strict_shop.running() as service:
        service.drop(identity)
        service.backend.create_topic(TOPIC)
        assert service.relay() == 0
    strict_shop.restore("shop.db")
    with strict_shop.running() as service:
        assert service.relay() == 1
    assert strict_shop.messages() == ["tea"]


def test_pruned_rows_come_back_with_the_former_horizon(shop):
    """A restored fence knows rows that were pruned since, and has the horizon of the copy."""
    with shop.running() as service:
        identity = service.order("tea")
    shop.copy("shop.db")
    with shop.running() as service:
        service.prune()
        assert service.row(identity) is FenceAnswer.PRUNED
    shop.restore("shop.db")
    with shop.running() as service:
        assert service.row(identity) is FenceAnswer.COMMIT
        service.prune()
        assert service.row(identity) is FenceAnswer.PRUNED


def test_parked_message_is_sent_by_a_resume_although_its_order_is_gone(strict_shop):
    """A journaled COMMIT does not ask the database again: a resume after the restore sends a message without order."""
    strict_shop.copy("shop.db")
    with strict_shop.running() as service:
        service.backend.create_topic(TOPIC)
        identity = service.order("tea", dies=True)
    strict_shop.delete_topic()
    with strict_shop.running() as service:
        service.check()
    strict_shop.restore("shop.db")
    with strict_shop.running() as service:
        operator = service.operator()
        (parked,) = operator.parked()
        assert parked.code == ParkCode.UNDELIVERABLE
        with pytest.raises(txcore.TransactionStateError, match="COMMIT is journaled"):
            operator.rollback(identity, "its order is gone", override_fence=True)
        service.backend.create_topic(TOPIC)
        operator.resume(identity, "topic made again")
        service.check()
        assert service.orders() == set()
    assert strict_shop.messages() == ["tea"]


def test_service_that_outlives_a_restore_commits_without_its_message(shop):
    """A frozen listener commits into the restored database, whose tombstone of its half is gone, and gets CONFLICT."""
    shop.copy("shop.db")
    may_continue, is_frozen, results = threading.Event(), threading.Event(), []

    class Listener(txcore.TransactionListener):
        def execute(self, transaction, message, arg):
            is_frozen.set()
            assert may_continue.wait(60)
            with shop.running() as restored, restored.engine.begin() as connection:
                transaction.fence(connection)
                connection.execute(text("INSERT INTO orders (item) VALUES ('tea')"))
            return txcore.LocalTransactionState.COMMIT

        def check_local_transaction(self, half):
            raise AssertionError

    with shop.running() as service:
        producer = service.producer(listener=Listener(), listener_fences=True)

        def send():
            results.append(producer.send_message_in_transaction(txcore.Message(TOPIC, b"tea")))

        thread = threading.Thread(target=send)
        thread.start()
        assert is_frozen.wait(60)
        service.check()
        service.engine.dispose()
        shop.restore("shop.db")
        may_continue.set()
        thread.join(60)
    (result,) = results
    assert result.end.state is txcore.EndState.CONFLICT
    with shop.running() as service:
        service.check()
        assert service.orders() == {"tea"}
    assert shop.messages() == []
