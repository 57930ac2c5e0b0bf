"""Halves, releases and marks in terms of messages. Everything runs on the loop's thread.

A release goes through at most four steps, each after the answer to the one before: look up what holds the
transaction's final subject (before anything is published), publish the targets or the parked record, write the op
behind what was found there and nothing else, and when that place was taken meanwhile, look again.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from txcore.clock import Clock
from txcore.errors import BackendUnavailableError, ConfigError, MessageRejectedError, TxcoreError, WireFormatError
from txcore.ids import id_text
from txcore.port import Batch
from txcore.records import DURABLE, FINAL_KINDS, HalfRecord, LogKind, Op, OpKind, Outcome, Resolution, Status
from txcore.wire import decode_ops, encode_ops, target_headers, target_id
from txcore_nats.codec import (
    HEADER_EXPECTED,
    HEADER_MESSAGE_ID,
    encode_headers,
    half_headers,
    is_conflict,
    op_headers,
)
from txcore_nats.control import Groups, missing_group
from txcore_nats.options import UNIQUE_KINDS, GroupNames, Options
from txcore_nats.publishing import NoStreamError, Publisher, Sending
from txcore_nats.targets import TargetChecks

_log = logging.getLogger("txcore.nats")

ATTEMPTS_MAX: Final = 4
"""How often the place of an op may be taken by a DISCARD of an earlier generation while it is written."""
SEQUENCE_HEADER: Final = "Nats-Sequence"

Settle = Callable[[Outcome], None]
Start = Callable[[GroupNames | None, TxcoreError | None], None]


class Release:
    """One resolution under way; settles exactly once."""

    __slots__ = (
        "_attempts",
        "_deadline_s",
        "_error",
        "_expected",
        "_left",
        "_missing",
        "_names",
        "_releaser",
        "_resolution",
        "_settle",
        "_status",
    )

    def __init__(
        self, releaser: Releaser, names: GroupNames, resolution: Resolution, settle: Settle, deadline_s: float
    ) -> None:
        self._releaser = releaser
        self._names = names
        self._resolution = resolution
        self._settle = settle
        self._deadline_s = deadline_s
        self._expected = 0
        self._attempts = 0
        self._left = 0
        self._missing: list[int] = []
        self._status = Status.DURABLE
        self._error: TxcoreError | None = None

    def start(self) -> None:
        """Take the first step."""
        op = self._resolution.op
        # A fresh ROLLBACK needs no look: nothing goes out before the op, and the op itself finds its place taken.
        is_alone = not self._resolution.targets and not self._resolution.parked
        if op is None or op.kind not in UNIQUE_KINDS or (is_alone and not op.generation):
            self._publish()
        else:
            self._look(self._looked)

    # -- what holds the place ---------------------------------------------------------------------------------------

    def _look(self, end: Callable[[Status, TxcoreError | None, Any], None]) -> None:
        half = self._resolution.half
        subject = self._names.final_subject(half.partition, half.transaction_id)
        self._releaser.look_up(self._names.op_stream, subject, self._deadline_s, end)

    def _looked(self, status: Status, error: TxcoreError | None, message: Any) -> None:
        if status is not Status.DURABLE:
            # Nothing was published, but nobody refused anything either.
            self._settle(Outcome(Status.UNKNOWN, _reached(error), missing=tuple(self._resolution.targets)))
        elif not self._is_superseded(message):
            self._publish()

    def _is_superseded(self, message: Any) -> bool:
        """Settle if what was found stands in the way; else remember it as what the op must stand behind."""
        op = self._resolution.op
        assert op is not None
        if message is None:
            self._expected = 0
            return False
        try:
            (holder,) = decode_ops(message.data)
        except (WireFormatError, ValueError) as error:
            unreadable = BackendUnavailableError(
                f"the final op of {id_text(op.transaction_id)} cannot be read: {error}"
            )
            missing = () if self._attempts else tuple(self._resolution.targets)
            self._settle(Outcome(Status.UNKNOWN, unreadable, missing=missing))
            return True
        if holder.kind in FINAL_KINDS or holder.generation >= op.generation:
            self._settle(Outcome(Status.SUPERSEDED, decision=holder.kind))
            return True
        self._expected = int(message.headers[SEQUENCE_HEADER])
        return False

    # -- targets ----------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        resolution = self._resolution
        half = resolution.half
        self._left = len(resolution.targets) + bool(resolution.parked)
        if not self._left:
            self._write()
            return
        if resolution.parked:
            subject = self._names.subject(LogKind.PARKED, half.partition)
            headers = half_headers(id_text(half.transaction_id), half.generation)
            end = functools.partial(self._target_ended, -1)
            self._releaser.send(Sending(subject, resolution.parked, headers, self._deadline_s, end))
        for index in resolution.targets:
            message = half.messages[index]
            headers = encode_headers(
                target_headers(half.group, half.transaction_id, index, message, resolution.by, key_as_header=True)
            )
            headers[HEADER_MESSAGE_ID] = target_id(half.transaction_id, index)
            end = functools.partial(self._target_ended, index)
            self._releaser.send(Sending(message.topic, message.body, headers, self._deadline_s, end))

    def _target_ended(self, index: int, status: Status, error: TxcoreError | None, _ack: Any) -> None:
        """One target is confirmed, refused or unknown; *index* -1 is the parked record."""
        if isinstance(error, NoStreamError) and index >= 0:
            topic = self._resolution.half.messages[index].topic
            self._releaser.explain(topic, error, self._deadline_s, functools.partial(self._note, index))
        else:
            self._note(index, status, error)

    def _note(self, index: int, status: Status, error: TxcoreError | None) -> None:
        if status is not Status.DURABLE:
            if index >= 0:
                self._missing.append(index)
            if isinstance(error, BackendUnavailableError):
                status = Status.UNKNOWN  # nobody said no
            # An unknown target outweighs a refused one: only then nothing is claimed that is not so.
            if self._status is not Status.UNKNOWN:
                self._status, self._error = status, error
        self._left -= 1
        if not self._left:
            if self._status is Status.DURABLE:
                self._write()
            else:
                self._settle(Outcome(self._status, self._error, missing=tuple(sorted(self._missing))))

    # -- the op -----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        op = self._resolution.op
        if op is None:
            self._settle(DURABLE)
            return
        self._attempts += 1
        partition = self._resolution.half.partition
        expected = self._expected if op.kind in UNIQUE_KINDS else None
        self._releaser.send_op(self._names, partition, op, self._deadline_s, self._written, expected=expected)

    def _written(self, status: Status, error: TxcoreError | None, ack: Any) -> None:
        if status is Status.DURABLE:
            self._settle(DURABLE)
        elif is_conflict(ack) and self._attempts < ATTEMPTS_MAX:
            self._look(self._looked_again)
        else:
            self._settle(Outcome(status, error))

    def _looked_again(self, status: Status, error: TxcoreError | None, message: Any) -> None:
        if status is not Status.DURABLE:
            self._settle(Outcome(Status.UNKNOWN, _reached(error)))
            return
        if self._is_superseded(message):
            if self._resolution.targets:
                identity = id_text(self._resolution.half.transaction_id)
                _log.warning("nats.op_refused_behind_target", extra={"transaction_id": identity})
        else:
            self._write()


class Releaser:
    """Turns batches into messages for the publisher."""

    def __init__(
        self, options: Options, publisher: Publisher, checks: TargetChecks, groups: Groups, clock: Clock
    ) -> None:
        self._options = options
        self._publisher = publisher
        self._checks = checks
        self._groups = groups
        self._clock = clock

    def append(self, batch: Batch[HalfRecord], deadline_s: float) -> None:
        """Store halves, each once its targets are known to exist."""
        for index, half in enumerate(batch.items):
            start = functools.partial(self._append, batch, index, half, deadline_s)
            self._for_group(half.group, half.partition, deadline_s, start)

    def release(self, batch: Batch[Resolution], deadline_s: float) -> None:
        """Publish the targets of each item, or its parked record; ops follow their confirmations."""
        for index, resolution in enumerate(batch.items):
            half = resolution.half
            start = functools.partial(self._release, batch, index, resolution, deadline_s)
            self._for_group(half.group, half.partition, deadline_s, start)

    def mark(self, group: str, partition: int, op: Op, future: Future[Outcome], deadline_s: float) -> None:
        """Append a CLAIM or TICK behind the ops published before."""

        def start(names: GroupNames | None, error: TxcoreError | None) -> None:
            if names is None:
                future.set_exception(error or missing_group(group))
                return
            self.send_op(names, partition, op, deadline_s, ended)

        def ended(status: Status, error: TxcoreError | None, _ack: Any) -> None:
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
        end: Callable[[Status, TxcoreError | None, Any], None],
        *,
        expected: int | None = None,
    ) -> None:
        """Append an op; *expected* is the sequence of the message that it must stand behind on its subject."""
        headers = op_headers(op, id_text(op.transaction_id))
        if expected is not None:
            headers[HEADER_EXPECTED] = str(expected)
        subject = names.op_subject(partition, op.kind, op.transaction_id)
        self._publisher.send(Sending(subject, encode_ops([op]), headers, deadline_s, end))

    def look_up(
        self, stream: str, subject: str, deadline_s: float, end: Callable[[Status, TxcoreError | None, Any], None]
    ) -> None:
        """Find the last message on a subject."""
        request = f"{self._options.api_prefix}.DIRECT.GET.{stream}.{subject}"
        self._publisher.send(Sending(request, b"", None, deadline_s, end, is_lookup=True))

    def explain(
        self,
        subject: str,
        error: TxcoreError,
        deadline_s: float,
        take: Callable[[Status, TxcoreError | None], None],
    ) -> None:
        """Find out why nobody took a target: no stream has its subject any more, or the stream has no leader now."""
        self._checks.forget(subject)
        held = self._publisher.hold(deadline_s, lambda *_: take(Status.UNKNOWN, error))

        def found(problem: TxcoreError | None) -> None:
            if not held.take_back():
                return
            if isinstance(problem, MessageRejectedError):
                take(Status.REFUSED, problem)
            else:
                take(Status.UNKNOWN, problem or error)

        self._checks.ask(subject, found)

    def _for_group(self, group: str, partition: int, deadline_s: float, start: Start) -> None:
        """Start now, or once the group was found; with an error if there is no such group or partition."""
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
        """Return the subjects that must be asked for.

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
        subjects = set(unknown)
        left = len(subjects)
        self._publisher.watch(sending)

        def found(error: TxcoreError | None) -> None:
            nonlocal left
            left -= 1
            if error is None and not left and sending.end is not None:
                try:
                    self._examine(half)
                except MessageRejectedError as rejected:
                    error = rejected
            if error is not None:
                sending.settle(Status.REFUSED, error)
            elif not left and sending.end is not None:
                self._publisher.send(sending)

        for subject in subjects:
            self._checks.ask(subject, found)

    def _release(
        self,
        batch: Batch[Resolution],
        index: int,
        resolution: Resolution,
        deadline_s: float,
        names: GroupNames | None,
        error: TxcoreError | None,
    ) -> None:
        settle = functools.partial(batch.settle, index)
        if names is None:
            status = Status.REFUSED if isinstance(error, ConfigError) else Status.UNKNOWN
            settle(Outcome(status, error, missing=tuple(resolution.targets)))
        else:
            Release(self, names, resolution, settle, deadline_s).start()


def _settle_half(batch: Batch[HalfRecord], index: int, status: Status, error: TxcoreError | None, _ack: Any) -> None:
    batch.settle(index, DURABLE if status is Status.DURABLE else Outcome(status, error))


def _reached(error: TxcoreError | None) -> TxcoreError:
    return error or BackendUnavailableError(f"nobody answered a {OpKind.COMMIT.name}")
