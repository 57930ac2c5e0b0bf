"""The permissions that the README names are enough for all actions of a group's processes."""

from __future__ import annotations

import re
from pathlib import Path

from txcore_conformance.kit import COMMIT, UNKNOWN, Answers, Kit
from txcore_nats.testing import NatsHarness

import txcore
from txcore import Message

README = Path(__file__).parents[1] / "README.md"


class Restricted(NatsHarness):
    """A server with an administrator that creates the topics, and a user with the README's permissions."""

    url_options = "?half_bytes_max=1000000&lease_s=2&keep_s=10"

    def start(self):
        super().start()
        address = self.broker.url.partition("://")[2]
        self.url = f"nats://orders:pw@{address}{self.url_options}"
        self.broker.url = f"nats://admin:pw@{address}"

    def topic(self, name):
        return f"shop.{name}"


def test_a_user_with_the_readmes_permissions_can_do_everything(started_broker):
    """The server denies nothing to such a user: from halves, ends and checks to parking, resuming and cleaning."""
    (permissions,) = re.findall(r"```conf\n(permissions: .*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    users = f"[{{user: admin, password: pw}}, {{user: orders, password: pw, {' '.join(permissions.split())}}}]"
    broker = started_broker(**{"authorization.users": users})
    harness = Restricted(broker)
    harness.start()
    kit = Kit(harness, "orders")
    try:
        _live_through(kit)
        denied = [line for line in (broker.folder / "server.log").read_text().splitlines() if "Violation" in line]
        assert denied == []
    finally:
        kit.close()
        harness.stop()
        broker.remove()


def _live_through(kit):
    topic = kit.topic()
    kit.backend._shared.housekeeper._keep_s = 0.0
    checked = kit.orphan(Message(topic, b"checked")).transaction_id
    stuck = kit.orphan(Message(topic, b"parked")).transaction_id
    with kit.producer(Answers(local=COMMIT)) as producer:
        sent = producer.send_message_in_transaction(Message(topic, b"sent"))
    assert txcore.EndState.ACCEPTED is sent.end.state
    used = {kit.journey(each).partition for each in (checked, stuck, sent.transaction_id)}
    kit.sweep(kit.checker(Answers(UNKNOWN, by_body={b"checked": COMMIT}), check_max=1))
    kit.stop_checkers()
    kit.operator().resume(stuck)
    kit.backend._shared.housekeeper._next_s.clear()
    kit.sweep(kit.checker(Answers(COMMIT)))
    kit.until(lambda: sorted(kit.bodies(topic)) == [b"checked", b"parked", b"sent"], "the deliveries")
    cleaned = {partition for group, partition in kit.backend._shared.housekeeper._next_s if group == "orders"}
    assert used == cleaned, "a partition that never had a half has no checkpoint, and nothing to clean"
