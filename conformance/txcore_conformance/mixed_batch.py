"""A batch of transactions that differ in all that a batch may assume to be equal, and the judgement of their results.

`send_many` handles what many transactions have in common once. Here their answers, messages and topics differ, so that
a rule which is applied to the wrong one shows: in its result, in its half, in its ops, or in what consumers see.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from txcore import (
    CheckPolicy,
    EndState,
    HalfRefusedError,
    HalfUnknownError,
    Message,
    MessageRejectedError,
    TransactionSendResult,
    wire,
)
from txcore.records import OpKind
from txcore_conformance import oracle
from txcore_conformance.kit import COMMIT, ROLLBACK, UNKNOWN, Answers, Kit

IMMUNITY_S: Final = 3_600.0
FINALS: Final = {COMMIT: OpKind.COMMIT, ROLLBACK: OpKind.ROLLBACK}


class Refusal(Exception):  # noqa: N818
    """Raised by a local transaction."""


class Sent(msgspec.Struct):
    """One message of the batch: the listener's answer to it, and its result."""

    message: Message
    answer: Any
    result: TransactionSendResult | None = None


def mixed(topics: Sequence[str], count: int, seed: int = 1, immunity_s: float = IMMUNITY_S) -> list[Sent]:
    """Return *count* messages whose bodies differ: of all answers, topics, keys, headers and policies, some invalid.

    The first one has a policy of its own. Such policies have this immunity.
    """
    sent = plain(topics, count, seed)
    rng = random.Random(seed)
    for each in sent:
        message = each.message
        if rng.random() < 0.25:
            message.headers = {"kind": "order", "raw": b"\x00\xff"}
        if each is sent[0] or rng.random() < 0.1:
            message.check_policy = CheckPolicy(immunity_s=immunity_s, interval_s=rng.choice([7.0, 8.0]), check_max=3)
        elif rng.random() < 0.05:
            body = message.body
            each.message = rng.choice([Message("", body), Message(topics[0], body, headers={"txcore-id": "forged"})])
    return sent


def plain(topics: Sequence[str], count: int, seed: int = 1) -> list[Sent]:
    """Return *count* messages whose bodies, answers, topics and keys differ, without anything else in them."""
    rng = random.Random(seed)
    sent = []
    for number in range(count):
        body = b"%d-%06d" % (seed, number) + b"x" * rng.choice([0, 30, 300])
        key = rng.choice([None, b"", b"key-%d" % rng.randrange(20)])
        answer = rng.choices([COMMIT, ROLLBACK, UNKNOWN, Refusal("no"), None], [70, 10, 5, 5, 5])[0]
        sent.append(Sent(Message(rng.choice(topics), body, key), answer))
    return sent


class Mixed(Answers):
    """Answers each message as its `Sent` says."""

    def execute_local_transaction(self, message: Message, arg: Sent) -> Any:
        """Return or raise the answer; a message that is not the argument's own fails the test later."""
        self.executed.append(message)
        if arg.message is not message:
            return None
        if isinstance(arg.answer, Exception):
            raise arg.answer
        return arg.answer


def send(kit: Kit, sent: Sequence[Sent], **options: Any) -> None:
    """Send all in one call of `send_many`, and store each result."""
    results = kit.producer(Mixed(), **options).send_many((each.message, each) for each in sent)
    assert len(results) == len(sent)
    for each, result in zip(sent, results, strict=True):
        each.result = result


def judge_results(sent: Sequence[Sent]) -> Counter[str]:
    """Require that each has a result of its own that fits its message and answer; returns how often each kind came.

    A broker that was away makes halves UNKNOWN or REFUSED, and ends UNKNOWN; never an answer that was not given.
    """
    kinds: Counter[str] = Counter()
    for each in sent:
        result = each.result
        assert result is not None
        if not each.message.topic or (each.message.headers and "txcore-id" in each.message.headers):
            assert isinstance(result.error, MessageRejectedError), result
            kinds["rejected"] += 1
        elif isinstance(result.error, HalfUnknownError | HalfRefusedError):
            assert (result.local_transaction_state, result.end) == (UNKNOWN, None)
            kinds[type(result.error).__name__] += 1
        elif each.answer in FINALS:
            assert result.local_transaction_state is each.answer, result
            assert result.end is not None
            assert result.end.transaction_id == result.transaction_id
            assert result.end.state in {EndState.ACCEPTED, EndState.UNKNOWN, EndState.TOO_LATE}, result
            kinds[f"{each.answer.value} {result.end.state.value}"] += 1
        else:
            assert (result.local_transaction_state, result.end) == (UNKNOWN, None)
            assert isinstance(each.answer, Refusal) == (result.error is each.answer), result
            kinds["UNKNOWN"] += 1
    assert len({each.result.transaction_id for each in sent if each.result}) == len(sent)
    return kinds


def judge_logs(kit: Kit, topics: Sequence[str], sent: Sequence[Sent]) -> None:
    """Require that logs and topics hold exactly what the results say: halves, one final op each, published messages."""
    kit.backend.close().result(kit.timeout_s)  # ops that wait to be merged are written
    reader = kit.open()
    journeys = oracle.journeys(reader, kit.group)
    delivered = {}
    for topic in topics:
        for found in oracle.everything_in(kit.harness, topic):
            identity = _raw(found.headers[wire.HEADER_ID]).decode()
            assert identity not in delivered, f"{identity} was published twice"
            delivered[identity] = (topic, found)
    for each in sent:
        result = each.result
        assert result is not None
        journey = journeys.get(result.transaction_id)
        if isinstance(result.error, MessageRejectedError):
            assert journey is None
            continue
        assert journey is not None
        (half,) = journey.halves
        assert [(target.topic, target.key, target.body) for target in half.messages] == [
            (each.message.topic, each.message.key, each.message.body)
        ]
        own = each.message.check_policy
        assert (half.interval_ms, half.check_max) == ((0, 0) if own is None else (own.interval_s * 1000, own.check_max))
        assert own is None or half.immunity_ms == own.immunity_s * 1000, half
        final = FINALS.get(each.answer)
        assert [op.kind for _, op in journey.ops] == ([] if final is None else [final])
        there = delivered.pop(wire.target_id(result.transaction_id, 0), None)
        assert (there is not None) == (final is OpKind.COMMIT), result
        if there is not None:
            topic, found = there
            assert (topic, found.body) == (each.message.topic, each.message.body)
            for name, value in (each.message.headers or {}).items():
                assert _raw(found.headers[name]) == _raw(value)
    assert not delivered, f"published, and not in the batch: {list(delivered)[:3]}"


def _raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
