"""Batches of halves and releases, and marks, as messages. All of it runs on the loop's thread."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from txcore.clock import Clock
from txcore.errors import ConfigError, MessageRejectedError, TxcoreError
from txcore.ids import id_text
from txcore.port import Batch
from txcore.records import DURABLE, HalfRecord, LogKind, Op, OpKind, Outcome, Resolution, Status
from txcore.wire import encode_ops
from txcore_nats.atomic import AtomicRelease, AtomicReleaser
from txcore_nats.codec import expecting, half_headers, op_headers
from txcore_nats.control import Groups, missing_group
from txcore_nats.lookups import LookUps
from txcore_nats.options import GroupNames, Options
from txcore_nats.publishing import End, Publisher, Sending
from txcore_nats.releasing import Release, Settle
from txcore_nats.targets import TargetChecks

Start = Callable[[GroupNames | None, TxcoreError | None], None]


class Releaser:
    """The part of the backend that turns batches into messages for the publisher."""

    def __init__(
        self,
        options: Options,
        publisher: Publisher,
        checks: TargetChecks,
        groups: Groups,
        clock: Clock,
        identity: str,
    ) -> None:
        self._options = options
        self._publisher = publisher
        self._checks = checks
        self._groups = groups
        self._lookups = LookUps(options, publisher, groups)
        self._atomic = AtomicReleaser(publisher, self, clock, identity)

    @property
    def is_idle(self) -> bool:
        """Whether no atomic release waits or is under way."""
        return self._atomic.is_idle

    def append(self, batch: Batch[HalfRecord], deadline_s: float) -> None:
        """Store halves, each after its targets are known to exist."""
        for index, half in enumerate(batch.items):
            names = self._known(half)
            if names is not None:
                self._append(batch, index, half, deadline_s, names, None)
            else:
                start = functools.partial(self._append, batch, index, half, deadline_s)
                self._for_group(half.group, half.partition, deadline_s, start)

    def release(self, batch: Batch[Resolution], deadline_s: float, *, by_checker: bool) -> None:
        """Publish the targets of each item, or its parked record; its op comes after these, or in one batch with them.

        The final subjects of all ops in one batch are looked up together.
        """
        looking: dict[GroupNames, list[tuple[str, End]]] = {}
        for index, resolution in enumerate(batch.items):
            half = resolution.half
            names = self._known(half)
            settle = functools.partial(batch.settle, index)
            if names is None:
                start = functools.partial(self._release_found, resolution, settle, deadline_s, by_checker)
                self._for_group(half.group, half.partition, deadline_s, start)
            elif self._options.is_atomic:
                self._release_atomic(resolution, settle, deadline_s, by_checker, names)
            else:
                release = Release(self, names, resolution, settle, deadline_s)
                if release.looks_first:
                    looking.setdefault(names, []).append((release.subject, release.looked))
                else:
                    release.publish()
        for names, wanted in looking.items():
            self._lookups.find_many(names, wanted, deadline_s)

    def mark(
        self, group: str, partition: int, op: Op, future: Future[Outcome], deadline_s: float, *, by_checker: bool
    ) -> None:
        """Append a CLAIM or TICK after the ops that were published before it."""

        def start(names: GroupNames | None, error: TxcoreError | None) -> None:
            if names is None:
                future.set_exception(error or missing_group(group))
            elif self._options.is_atomic and op.kind != OpKind.CLAIM:
                tick = Resolution(HalfRecord(group, partition, op.transaction_id, 0, b"", ()), op)
                token = op.token if by_checker else None
                self._atomic.release(AtomicRelease(names, tick, future.set_result, deadline_s, token=token))
            else:
                self.send_op(names, partition, op, deadline_s, ended)

        def ended(status: Status, error: TxcoreError | None, ack: Any) -> None:
            if status is Status.DURABLE and op.kind == OpKind.CLAIM:
                self._atomic.claimed(group, partition, op.token, ack.seq)
            future.set_result(DURABLE if status is Status.DURABLE else Outcome(status, error))

        self._for_group(group, partition, deadline_s, start)

    def send(self, sending: Sending) -> None:
        """Hand one message to the publisher."""
        self._publisher.send(sending)

    def send_op(
        self,
        names: GroupNames,
        partition: int,
        op: Op,
        deadline_s: float,
        end: End,
        *,
        expected: int | None = None,
    ) -> None:
        """Append an op; *expected* is the sequence of the message directly before it on its subject."""
        headers = op_headers(op, id_text(op.transaction_id))
        if expected is not None:
            headers += expecting(expected)
        subject = names.op_subject(partition, op.kind, op.transaction_id)
        self._publisher.send(Sending(subject, encode_ops([op]), headers, deadline_s, end))

    def look_up(self, names: GroupNames, subject: str, deadline_s: float, end: End) -> None:
        """Find the last message on a subject of the op stream."""
        self._lookups.find(names, subject, deadline_s, end)

    def explain(
        self,
        subject: str,
        error: TxcoreError,
        deadline_s: float,
        take: Callable[[Status, TxcoreError | None], None],
    ) -> None:
        """Find out why no stream took a target: *take* gets REFUSED if it is in no stream any more, else UNKNOWN."""
        self._checks.forget(subject)
        held = self._publisher.hold(deadline_s, lambda *_: take(Status.UNKNOWN, error))

        def found(problem: TxcoreError | None) -> None:
            if not held.take_back():
                return
            if isinstance(problem, MessageRejectedError):
                take(Status.REFUSED, problem)
            else:
                take(Status.UNKNOWN, problem or error)

        self._checks.ask([subject], found)

    def _known(self, half: HalfRecord) -> GroupNames | None:
        """Return the names of the half's group; None if the group is not known yet, or has no such partition."""
        is_known = 0 <= half.partition < self._groups.count(half.group)
        return self._groups.names(half.group) if is_known else None

    def _for_group(self, group: str, partition: int, deadline_s: float, start: Start) -> None:
        """Call *start* now, or after the group was found; with an error if there is no such group or partition."""
        count = self._groups.count(group)
        if not count:
            try:
                self._groups.names(group)
            except ConfigError as error:
                start(None, error)
                return
            held = self._publisher.hold(deadline_s, lambda _status, error, _answer: start(None, error))

            def found(error: TxcoreError | None) -> None:
                if not held.take_back():
                    return
                if error is not None:
                    start(None, error)
                else:
                    self._for_group(group, partition, deadline_s, start)

            self._groups.when_found(group, found)
        elif not 0 <= partition < count:
            start(None, ConfigError(f"group {group!r} has no partition {partition}", key="partition"))
        else:
            start(self._groups.names(group), None)

    def _append(
        self,
        batch: Batch[HalfRecord],
        index: int,
        half: HalfRecord,
        deadline_s: float,
        names: GroupNames | None,
        error: TxcoreError | None,
    ) -> None:
        if names is None:
            batch.settle(index, Outcome(Status.REFUSED, error))
            return
        try:
            unknown = self._examine(half)
        except MessageRejectedError as rejected:
            batch.settle(index, Outcome(Status.REFUSED, rejected))
            return
        sending = Sending(
            names.subject(LogKind.HALF, half.partition),
            half.body,
            half_headers(id_text(half.transaction_id), half.generation),
            deadline_s,
            functools.partial(_settle_half, batch, index),
        )
        if unknown:
            self._send_when_found(sending, half, unknown)
        else:
            self._publisher.send(sending)

    def _examine(self, half: HalfRecord) -> Sequence[str]:
        """Return the subjects whose streams are not known yet.

        Raises:
            MessageRejectedError: the half is too large, or one of its messages cannot be carried.
        """
        size, size_max = len(half.body), self._options.body_size_max
        if size > size_max:
            raise MessageRejectedError(
                f"the transaction's messages have {size} bytes together; this backend takes {size_max}",
                topic=half.messages[0].topic if half.messages else "",
                reason="size",
            )
        return [message.topic for message in half.messages if not self._checks.check(message)]

    def _send_when_found(self, sending: Sending, half: HalfRecord, unknown: Sequence[str]) -> None:
        self._publisher.watch(sending)

        def found(error: TxcoreError | None) -> None:
            if sending.end is None:
                return
            try:
                if error is None:
                    self._examine(half)
            except MessageRejectedError as rejected:
                error = rejected
            if error is None:
                self._publisher.send(sending)
            else:
                sending.settle(Status.REFUSED, error)

        self._checks.ask(unknown, found)

    def _release_found(
        self,
        resolution: Resolution,
        settle: Settle,
        deadline_s: float,
        by_checker: bool,  # noqa: FBT001 - bound by `release`
        names: GroupNames | None,
        error: TxcoreError | None,
    ) -> None:
        if names is None:
            status = Status.REFUSED if isinstance(error, ConfigError) else Status.UNKNOWN
            settle(Outcome(status, error, missing=tuple(resolution.targets)))
        elif self._options.is_atomic:
            self._release_atomic(resolution, settle, deadline_s, by_checker, names)
        else:
            Release(self, names, resolution, settle, deadline_s).start()

    def _release_atomic(
        self,
        resolution: Resolution,
        settle: Settle,
        deadline_s: float,
        by_checker: bool,  # noqa: FBT001 - as above
        names: GroupNames,
    ) -> None:
        token = resolution.op.token if by_checker and resolution.op is not None else None
        self._atomic.release(AtomicRelease(names, resolution, settle, deadline_s, token=token))


def _settle_half(batch: Batch[HalfRecord], index: int, status: Status, error: TxcoreError | None, _ack: Any) -> None:
    batch.settle(index, DURABLE if status is Status.DURABLE else Outcome(status, error))
