"""`release=atomic`: targets, parked record and op in one atomic batch of the stream that holds them all.

Each batch costs the server a sync of its disk, so releases share batches: while some batches are under way, further
releases wait for the next one. If the server refuses one release, it refuses the whole batch. The batch is halved and
sent again, until each refused release is alone and its reason can be looked up. The first message of each release by a
checker carries the expectation that its CLAIM is still the newest: an outdated checker's batch is refused as a whole.

Source: NATS ADR-50 (atomic batch publish). All of it runs on the loop's thread.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from txcore.clock import Clock
from txcore.errors import BackendUnavailableError, MessageRejectedError, TxcoreError, WireFormatError
from txcore.ids import id_text
from txcore.op_rules import excludes
from txcore.records import DURABLE, UNIQUE_KINDS, LogKind, Op, Outcome, Resolution, Status
from txcore.wire import decode_ops, encode_ops, target_headers
from txcore_nats.codec import (
    HEADER_EXPECTED_SUBJECT,
    INCOMPLETE_BATCH,
    Found,
    encode_headers,
    expecting,
    half_headers,
    header_lines,
    is_conflict,
    op_headers,
)
from txcore_nats.options import GroupNames
from txcore_nats.publishing import NoStreamError, Publisher, Sending
from txcore_nats.releasing import Sender, Settle

_log = logging.getLogger("txcore.nats")

BATCH_COUNT_MAX: Final = 1_000
"""The server's limit on messages in one batch."""
BATCH_BYTES_MAX: Final = 16 << 20
IN_FLIGHT_MAX: Final = 2
ATTEMPTS_MAX: Final = 6
HEADER_BATCH_ID: Final = "Nats-Batch-Id"
HEADER_BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
HEADER_BATCH_COMMIT: Final = "Nats-Batch-Commit"

Message = tuple[str, bytes, str]


class AtomicRelease:
    """One resolution, or one mark of a checker, under way; settled exactly once."""

    __slots__ = ("attempts", "claim_sequence", "deadline_s", "expected", "names", "op", "resolution", "settle", "token")

    def __init__(
        self,
        names: GroupNames,
        resolution: Resolution,
        settle: Settle,
        deadline_s: float,
        *,
        token: bytes | None,
    ) -> None:
        self.names = names
        self.resolution = resolution
        self.op = resolution.op
        self.settle = settle
        self.deadline_s = deadline_s
        self.token = token  #: the token that the newest CLAIM must have; None for a release by a producer
        self.claim_sequence = 0
        self.expected = max(getattr(resolution.op, "position", 0), 0)  # of the COMMITTED that the op follows
        self.attempts = 0

    @property
    def partition(self) -> int:
        """The partition whose op log gets the op."""
        return self.resolution.half.partition

    @property
    def is_unique(self) -> bool:
        """Whether the op must be the only end of its generation."""
        return self.op is not None and self.op.kind in UNIQUE_KINDS

    def fail(self, status: Status, error: TxcoreError | None) -> None:
        """Settle a release of which no message is stored (REFUSED), or of which all may be (UNKNOWN)."""
        self.settle(Outcome(status, error, missing=tuple(self.resolution.targets)))

    def messages(self) -> list[Message]:
        """Return the messages that are stored together, in order."""
        resolution, names, op = self.resolution, self.names, self.op
        half = resolution.half
        made: list[Message] = []
        for index in resolution.targets:
            message = half.messages[index]
            headers = target_headers(half.group, half.transaction_id, index, message, resolution.by, key_as_header=True)
            made.append((message.topic, message.body, header_lines(encode_headers(headers))))
        if resolution.parked:
            headers_of_parked = half_headers(id_text(half.transaction_id), half.generation)
            made.append((names.subject(LogKind.PARKED, half.partition), resolution.parked, headers_of_parked))
        if op is not None:
            if self.is_unique and self.token is not None and not made:
                # A message carries one expectation only, so the one about the claim needs a message of its own.
                made.append((names.fence_subject(half.partition), encode_ops([]), ""))
            expected = expecting(self.expected) if self.is_unique else ""
            op_lines = op_headers(op, id_text(op.transaction_id)) + expected
            made.append((names.op_subject(half.partition, op.kind, op.transaction_id), encode_ops([op]), op_lines))
        if self.token is not None and made:
            subject, body, lines = made[0]
            fence = f"{HEADER_EXPECTED_SUBJECT}: {names.claim_subject(half.partition)}\r\n"
            made[0] = (subject, body, lines + expecting(self.claim_sequence) + fence)
        return made


class AtomicReleaser:
    """The part of the backend that forms batches of releases, and divides refused batches."""

    def __init__(self, publisher: Publisher, sender: Sender, clock: Clock, identity: str) -> None:
        self._publisher = publisher
        self._sender = sender
        self._clock = clock
        self._identity = identity
        self._waiting: deque[AtomicRelease] = deque()
        self._halved: deque[list[AtomicRelease]] = deque()
        self._in_flight = 0
        self._count = 0
        self._claims: dict[tuple[str, int], tuple[bytes, int]] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no release waits and no batch is under way."""
        return not self._waiting and not self._halved and not self._in_flight

    def release(self, item: AtomicRelease) -> None:
        """Send *item* with the next batch."""
        op = item.op
        if item.token is not None:
            known = self._claims.get((item.names.group, item.partition))
            if known is None or known[0] != item.token:
                self._look_for_claim(item, self._release_after_claim)
                return
            item.claim_sequence = known[1]
        if op is not None and item.is_unique and op.generation and not item.attempts:
            self._look_for_final(item)
        else:
            self._queue(item)

    def claimed(self, group: str, partition: int, token: bytes, sequence: int) -> None:
        """Remember the token and the sequence of a stored CLAIM."""
        self._claims[group, partition] = (token, sequence)

    # -- sending -----------------------------------------------------------------------------------------------------

    def _queue(self, item: AtomicRelease) -> None:
        self._waiting.append(item)
        self._pump()

    def _pump(self) -> None:
        while self._in_flight < IN_FLIGHT_MAX and (self._halved or self._waiting):
            self._send(self._halved.popleft() if self._halved else self._gather())

    def _gather(self) -> list[AtomicRelease]:
        items: list[AtomicRelease] = []
        count = size = 0
        while self._waiting:
            item = self._waiting[0]
            half = item.resolution.half
            count += len(item.resolution.targets) + 2
            size += len(half.body) + len(item.resolution.parked)
            if items and (count > BATCH_COUNT_MAX or size > BATCH_BYTES_MAX):
                break
            items.append(self._waiting.popleft())
        return items

    def _send(self, items: list[AtomicRelease]) -> None:
        now_s = self._clock.elapsed_s()
        for item in items:
            if item.deadline_s <= now_s:
                item.fail(Status.UNKNOWN, BackendUnavailableError("NATS is too slow; nothing was published"))
        items = [item for item in items if item.deadline_s > now_s]
        messages = [message for item in items for message in item.messages()]
        if len(messages) > BATCH_COUNT_MAX:
            text = f"{len(messages)} messages are more than the {BATCH_COUNT_MAX} of an atomic batch"
            items[0].fail(Status.REFUSED, MessageRejectedError(text, topic=messages[0][0], reason="size"))
            return
        if not messages:
            for item in items:
                item.settle(DURABLE)
            return
        self._in_flight += 1
        deadline_s = min(item.deadline_s for item in items)
        ended = functools.partial(self._ended, items)
        if len(messages) == 1:
            self._publisher.send(Sending(*messages[0], deadline_s, ended))
            return
        self._count += 1
        batch_id = f"{self._identity}-{self._count}"
        for number, (subject, body, headers) in enumerate(messages, start=1):
            is_last = number == len(messages)
            lines = f"{headers}{HEADER_BATCH_ID}: {batch_id}\r\n{HEADER_BATCH_SEQUENCE}: {number}\r\n"
            if is_last:
                lines += f"{HEADER_BATCH_COMMIT}: 1\r\n"
            end = ended if is_last else _ignore
            self._publisher.send(Sending(subject, body, lines, deadline_s, end, is_answered=is_last))

    def _ended(self, items: list[AtomicRelease], status: Status, error: TxcoreError | None, ack: Any) -> None:
        self._in_flight -= 1
        if status is Status.DURABLE:
            for item in items:
                item.settle(DURABLE)
        elif ack is None and not isinstance(error, NoStreamError):
            # There was no answer, or no batch was sent: this is no refusal by the server.
            for item in items:
                item.fail(Status.UNKNOWN, error)
        elif len(items) > 1 and is_conflict(ack) and not any(item.attempts for item in items):
            # A look-up costs less than a batch, and it finds most of the conflicting releases at once.
            for item in items:
                item.attempts = 1
                self._look_again(item)
        elif len(items) > 1:
            middle = len(items) // 2
            self._halved.extend((items[:middle], items[middle:]))
        else:
            self._refused(items[0], status, error, ack)
        self._pump()

    # -- reasons -----------------------------------------------------------------------------------------------------

    def _refused(self, item: AtomicRelease, status: Status, error: TxcoreError | None, ack: Any) -> None:
        item.attempts += 1
        if is_conflict(ack):
            if item.attempts >= ATTEMPTS_MAX:
                item.fail(Status.UNKNOWN, error)
            else:
                self._look_again(item)
        elif isinstance(error, NoStreamError) or ack.error.err_code == INCOMPLETE_BATCH:
            self._explain(item, error)
        else:
            item.fail(status, error)

    def _look_again(self, item: AtomicRelease) -> None:
        """Find out whether the claim is outdated or the op's place is taken; send *item* again if neither is."""
        if item.token is not None:
            self._look_for_claim(item, self._resolve_after_claim)
        else:
            self._resolve_after_claim(item)

    def _explain(self, item: AtomicRelease, error: TxcoreError | None) -> None:
        """Settle *item*, of which no stream took some message: find the target that is in no stream any more."""
        topics = {item.resolution.half.messages[index].topic for index in item.resolution.targets}
        left = len(topics)
        problem = error or BackendUnavailableError("a batch was incomplete")
        if not left:
            item.fail(Status.UNKNOWN, problem)
        is_settled = False

        def found(status: Status, reason: TxcoreError | None) -> None:
            nonlocal left, is_settled
            left -= 1
            if status is Status.REFUSED and not is_settled:
                is_settled = True
                item.fail(Status.REFUSED, reason)
            elif not left and not is_settled:
                item.fail(Status.UNKNOWN, problem)

        for topic in topics:
            self._sender.explain(topic, problem, item.deadline_s, found)

    def _look_for_claim(self, item: AtomicRelease, then: Callable[[AtomicRelease], None]) -> None:
        """Look up the newest CLAIM, and continue if its token is the item's own; else the item is FENCED."""

        def looked(status: Status, error: TxcoreError | None, found: Found | None) -> None:
            if status is not Status.DURABLE:
                item.fail(Status.UNKNOWN, error)
                return
            newest = _only_op(found)
            if found is None or newest is None or newest.token != item.token:
                item.settle(Outcome(Status.FENCED))
                return
            item.claim_sequence = found.sequence
            self.claimed(item.names.group, item.partition, newest.token, item.claim_sequence)
            then(item)

        self._sender.look_up(item.names, item.names.claim_subject(item.partition), item.deadline_s, looked)

    def _release_after_claim(self, item: AtomicRelease) -> None:
        if item.op is not None and item.is_unique and item.op.generation and not item.attempts:
            self._look_for_final(item)
        else:
            self._queue(item)

    def _resolve_after_claim(self, item: AtomicRelease) -> None:
        if item.is_unique:
            self._look_for_final(item)
        else:
            self._queue(item)

    def _look_for_final(self, item: AtomicRelease) -> None:
        """Look up the last end of the transaction; send *item* if it is none, or a DISCARD of an earlier generation."""
        op = item.op
        assert op is not None

        def looked(status: Status, error: TxcoreError | None, found: Found | None) -> None:
            if status is not Status.DURABLE:
                item.fail(Status.UNKNOWN, error)
                return
            holder = _only_op(found)
            if found is None:
                item.expected = 0
            elif holder is None:
                item.fail(Status.UNKNOWN, BackendUnavailableError("the final op that is there cannot be read"))
                return
            elif excludes(holder.kind, holder.generation, op):
                item.settle(Outcome(Status.SUPERSEDED, decision=holder.kind))
                return
            else:
                item.expected = found.sequence
            self._queue(item)

        subject = item.names.final_subject(item.partition, op.transaction_id)
        self._sender.look_up(item.names, subject, item.deadline_s, looked)


def _only_op(found: Found | None) -> Op | None:
    if found is None:
        return None
    try:
        ops: Sequence[Op] = decode_ops(found.body)
    except WireFormatError as error:
        _log.warning("nats.op_unreadable", extra={"txcore": {"reason": str(error)}})
        return None
    return ops[0] if len(ops) == 1 else None


def _ignore(_status: Status, _error: TxcoreError | None, _answer: Any) -> None:
    """Ignore the end of one message, as the last message of the batch gets the answer for all."""
