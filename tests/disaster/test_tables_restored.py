"""A single table is restored, or the consumer's database with its inbox."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from txcore.fence import FenceAnswer


def test_consumer_that_was_restored_applies_what_it_reads_again(shop):
    """Effects since the copy come again with a new reading of the topic, and the inbox drops the earlier messages."""
    with shop.running() as service:
        service.order("before")
        shop.receive()
        shop.copy("mail.db")
        service.order("after")
        shop.receive()
        assert shop.mails() == ["after", "before"]
        shop.restore("mail.db")
        service.order("new")
        shop.receive()
        assert shop.mails() == ["before", "new"]
        shop.receive(group="mail, from the beginning")
        assert shop.mails() == ["after", "before", "new"]


def test_inbox_restored_alone_lets_effects_happen_twice(shop):
    """An inbox that is older than the effects beside it takes a repeated message for a first one."""
    with shop.running() as service:
        service.order("before")
        shop.receive()
        shop.copy("mail.db")
        service.order("after")
        shop.receive()
    shop.restore("mail.db", "txcore_inbox")
    shop.receive(group="mail, from the beginning")
    assert shop.mails() == ["after", "after", "before"]


def test_message_table_restored_alone_loses_what_waited(shop):
    """Messages that came after the copy are gone without a trace in txcore, though their fence rows say state 3."""
    with shop.running() as service:
        service.order("sent", mode="table")
    shop.copy("shop.db")
    with shop.running() as service:
        assert service.relay() == 1
        waiting = service.order("waiting", mode="table")
    shop.restore("shop.db", "txcore_tx_msg")
    with shop.running() as service:
        assert service.relay() == 1
        service.check()
        assert service.row(waiting) is FenceAnswer.VIA_TABLE
        assert service.orders() == {"sent", "waiting"}
    assert shop.messages() == ["sent", "sent"]
    assert len(set(shop.ids())) == 1


def test_fence_restored_alone_rolls_committed_orders_back(shop):
    """A fence that is older than the orders beside it says ROLLBACK of an undecided one: its message is lost."""
    shop.copy("shop.db")
    with shop.running() as service:
        service.order("crashed", dies=True)
    shop.restore("shop.db", "txcore_tx")
    with shop.running() as service:
        service.check()
        assert service.orders() == {"crashed"}
    assert shop.messages() == []


def test_older_checkpoints_cost_only_work(shop):
    """Checkpoints that are removed, or older than the logs, deliver nothing twice."""
    with shop.running() as service:
        service.order("first", dies=True)
        service.check()
        service.order("second", dies=True)
        service.check()
    with closing(sqlite3.connect(shop.broker)) as connection, connection:
        assert connection.execute("DELETE FROM checkpoint").rowcount
    with shop.running() as service:
        service.order("third", dies=True)
        service.check()
    assert shop.messages() == ["first", "second", "third"]
