"""A process that ends normally writes the ops of all accepted commits first, even if it does not close the backend."""

from __future__ import annotations

import pytest
from txcore_conformance import raw

from txcore.records import FINAL_KINDS

WAYS = ("forgets", "closes", "many", "asyncio", "fails", "exits")


@pytest.mark.parametrize("way", WAYS)
def test_each_accepted_commit_has_its_op(kit, way):
    """Each accepted commit of an ended process has its op, even with a long merge delay, due to the exit hook."""
    kit.wait(kit.backend.ensure_group(kit.group, 2))
    topic = kit.queue()
    child = kit.child("end_normally", kit.address(merge_delay_s=1.5), kit.group, topic, way)
    printed, _ = child.communicate(timeout=60)
    ids = {bytes.fromhex(line.split()[1]) for line in printed.splitlines() if line.startswith("ACCEPTED ")}
    assert len(ids) == (60 if way in {"many", "asyncio"} else 3)
    assert child.returncode == {"fails": 1, "exits": 3}.get(way, 0)
    ended = {op.transaction_id for p in range(2) for op in raw.ops(kit, partition=p) if op.kind in FINAL_KINDS}
    assert ids <= ended


def test_a_broker_that_is_away_holds_the_end_up_for_a_moment_only(hurt):
    """A process whose broker is away ends soon after the five seconds of the exit hook."""
    hurt.wait(hurt.connect().ensure_group(hurt.group, 2))
    topic = hurt.queue()
    child = hurt.child("end_without_broker", hurt.address(proxied=True, merge_delay_s=1.5), hurt.group, topic)
    assert "ready\n" in iter(child.stdout.readline, "")
    hurt.broker.proxy.refuse()
    hurt.broker.proxy.cut()
    took_s, _ = hurt.lasts_s(lambda: child.communicate("go\n", timeout=60))
    hurt.broker.proxy.forward()
    assert took_s < 20.0
    assert child.returncode == 0
