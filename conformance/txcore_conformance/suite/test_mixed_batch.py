"""Many transactions in one call that have nothing in common: each has its own result, half, op and message."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from txcore import Message
from txcore_conformance import mixed_batch
from txcore_conformance.kit import COMMIT, ROLLBACK, Answers, Kit, wait_until

COUNT = 1_000
STALL_S = 3.0
PATIENCE_S = 90.0
FIRST = b"the topic is known"
CERTAIN = {"rejected", "UNKNOWN", "COMMIT ACCEPTED", "ROLLBACK ACCEPTED"}


@pytest.mark.parametrize(
    ("made", "expected"), [(mixed_batch.mixed, CERTAIN), (mixed_batch.plain, CERTAIN - {"rejected"})]
)
def test_each_of_a_mixed_batch_has_its_own_end(kit: Kit, topic: str, made: Any, expected: set[str]) -> None:
    """Results, halves, ops and messages of a batch are those of its transactions sent one by one."""
    topics = [topic, kit.topic("other")]
    sent = made(topics, COUNT)
    began_s = time.monotonic()
    mixed_batch.send(kit, sent)
    is_slow = time.monotonic() - began_s > kit.promises.release_time_max_s / 2
    kinds = mixed_batch.judge_results(sent)
    if is_slow and kinds.keys() != expected:
        pytest.skip("this machine was too slow for the backend's timeout, so that some ends are not certain")
    assert kinds.keys() == expected
    for each in sent:
        if each.answer is COMMIT and each.result is not None and each.result.end is not None:
            kit.history.committed(each.result.transaction_id)
    mixed_batch.judge_logs(kit, topics, sent)


def test_a_broker_that_stalls_within_a_batch_loses_nothing(live: Kit) -> None:
    """The broker is frozen for 3 s while a batch is under way: what was accepted is there, and all have a result."""
    topic = live.topic()
    harness: Any = live.harness
    live.producer(Answers(local=COMMIT)).send_message_in_transaction(Message(topic, FIRST))
    immunity_s = live.promises.release_time_max_s + 1.0
    sent = mixed_batch.plain([topic], 2 * COUNT) + mixed_batch.mixed([topic], 2 * COUNT, 2, immunity_s)
    under_way = threading.Thread(target=mixed_batch.send, args=(live, sent))
    under_way.start()
    live.until(lambda: len(live.bodies(topic)) > 1 or not under_way.is_alive(), "the first messages")
    harness.broker.pause()
    threading.Event().wait(STALL_S)
    harness.broker.resume()
    under_way.join(PATIENCE_S)
    assert not under_way.is_alive()
    print(mixed_batch.judge_results(sent))
    committed = {}
    for each in sent:
        result = each.result
        if result is not None and result.local_transaction_state is COMMIT:
            committed[each.message.body] = result.transaction_id
            live.history.committed(result.transaction_id)
            live.history.caused(result.transaction_id, "the broker stalled")
    checker = live.checker(Answers(ROLLBACK, by_body=dict.fromkeys(committed, COMMIT)))
    checker.start()
    wait_until(lambda: committed.keys() == set(live.bodies(topic)) - {FIRST}, "all that committed", PATIENCE_S)
    wait_until(lambda: not live.operator().pending(), "the end of the others", PATIENCE_S)
    checker.stop()
    live.history.at_rest = True
