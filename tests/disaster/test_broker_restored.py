"""The broker is lost, or restored to an earlier point, while the database keeps all it has."""

from __future__ import annotations

from txcore_conformance.kit import ROLLBACK, Answers, Observed

import txcore
from txcore.fence import FenceAnswer
from txcore.records import ParkCode


def test_lost_broker_leaves_the_fence_alone_to_know_of_open_transactions(shop):
    """Undecided halves go with the broker: orders stay without message, and only their fence rows name them."""
    with shop.running() as service:
        service.order("sent")
        crashed = service.order("crashed", dies=True)
        service.order("waiting", mode="table")
    shop.lose("broker.db")
    with shop.running() as service:
        service.order("new")
        service.check()
        assert service.relay() == 1
        assert service.row(crashed) is FenceAnswer.COMMIT
        assert service.operator().pending() == service.operator().parked() == []
        assert service.orders() == {"sent", "crashed", "waiting", "new"}
    assert shop.messages() == ["new", "waiting"]


def test_handle_from_before_the_loss_still_sends(shop):
    """A transaction that began on the lost broker can end on the new one, whose checker reports an op without half."""
    with shop.running() as service:
        transaction = service.producer().begin()
        transaction.publish(txcore.Message("orders.created", b"tea"))
        with service.engine.connect() as connection:
            transaction.prepare(connection)
            connection.commit()
        handle = transaction.handle()
    shop.lose("broker.db")
    observed = Observed()
    with shop.running() as service:
        service.backend.ensure_group("shop", 2).result(60)
        policy = txcore.CheckPolicy()
        assert service.producer(policy=policy).attach(handle).commit().state is txcore.EndState.ACCEPTED
        service.check(plugins=[observed])
    assert shop.messages() == ["tea"]
    assert observed.named("op.without_half")


def test_restored_broker_asks_the_fence_again(shop):
    """A half that was decided after the copy is decided again, as before; one that was stored after it is gone."""
    with shop.running() as service:
        open_order = service.order("open", dies=True)
        undone = service.order("undone", dies=True)
        service.undo("undone", undone)
    shop.copy("broker.db")
    with shop.running() as service:
        service.check()
        service.order("after")
        service.order("via table", mode="table")
        assert service.relay() == 1
    assert sorted(shop.messages()) == ["after", "open", "via table"]
    shop.receive()
    shop.restore("broker.db")
    with shop.running() as service:
        assert [half.transaction_id for half in service.operator().pending()] == [open_order, undone]
        service.check()
        assert service.orders() == {"open", "after", "via table"}
        assert service.relay() == 0
    assert shop.messages() == ["open"]
    shop.receive()
    assert shop.mails() == ["after", "open", "via table"]


def test_listener_is_asked_again_after_the_broker_was_restored(shop):
    """A half without a fence, decided after the copy, is a question to its listener again."""
    listener = Answers(ROLLBACK)
    with shop.running() as service:
        producer = service.producer(fence=None, listener=listener)
        producer.send_message_in_transaction(txcore.Message("orders.created", b"tea"))
    shop.copy("broker.db")
    for times in (1, 2):
        with shop.running() as service:
            service.check(fence=None, listener=listener)
        assert len(listener.asked) == times
        shop.restore("broker.db")


def test_half_whose_row_was_pruned_is_parked_after_the_broker_was_restored(shop):
    """A half that is open again, and whose row was pruned since, is parked as PRUNED and never guessed."""
    with shop.running() as service:
        identity = service.order("open", dies=True)
    shop.copy("broker.db")
    with shop.running() as service:
        service.check()
        service.prune()
        assert service.row(identity) is FenceAnswer.PRUNED
    shop.restore("broker.db")
    with shop.running() as service:
        service.check()
        (parked,) = service.operator().parked()
        assert (parked.transaction_id, parked.code) == (identity, ParkCode.PRUNED)
        service.operator().commit(identity, "its order is in the database", override_fence=True)
        service.check()
    assert shop.messages() == ["open"]


def test_ended_transactions_stay_ended_after_both_were_restored_to_one_point(shop):
    """Broker and database from copies of one moment agree, and the orders of both are the same."""
    with shop.running() as service:
        service.order("before")
        service.order("open", dies=True)
    shop.copy("shop.db")
    shop.copy("broker.db")
    with shop.running() as service:
        service.check()
        service.order("after")
    shop.restore("shop.db")
    shop.restore("broker.db")
    with shop.running() as service:
        service.check()
        assert service.orders() == {"before", "open"}
    assert shop.messages() == ["before", "open"]


def test_copy_of_the_database_first_leaves_no_order_without_message(shop):
    """Of two copies that are not of one moment, a database older than the broker leaves messages without orders."""
    shop.copy("shop.db")
    with shop.running() as service:
        service.order("between")
        service.order("between, open", dies=True)
    shop.copy("broker.db")
    shop.restore("shop.db")
    shop.restore("broker.db")
    with shop.running() as service:
        service.check()
        assert service.orders() == set()
    assert shop.messages() == ["between"]


def test_copy_of_the_broker_first_leaves_orders_without_message(shop):
    """A broker older than the database leaves orders without messages, as their halves are gone."""
    shop.copy("broker.db")
    with shop.running() as service:
        service.order("between")
        service.order("between, open", dies=True)
    shop.copy("shop.db")
    shop.restore("shop.db")
    shop.restore("broker.db")
    with shop.running() as service:
        service.check()
        assert service.orders() == {"between", "between, open"}
    assert shop.messages() == []
