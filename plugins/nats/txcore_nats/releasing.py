"""One release: at most four steps, each after the answer to the one before.

First the last op on the transaction's final subject is looked up, before any target is published. Then the targets or
the parked record are published. The op is written only if it directly follows the op that was found. If another op was
written meanwhile, it is looked up again.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from txcore.backends.batch_progress import worse
from txcore.errors import BackendUnavailableError, TxcoreError, WireFormatError
from txcore.ids import id_text
from txcore.op_rules import excludes
from txcore.records import DURABLE, UNIQUE_KINDS, LogKind, Op, Outcome, Resolution, Status
from txcore.wire import HEADER_ID, decode_ops, target_headers
from txcore_nats.codec import HEADER_MESSAGE_ID, Found, encode_headers, half_headers, header_lines, is_conflict
from txcore_nats.options import GroupNames
from txcore_nats.publishing import End, NoStreamError, Sending

_log = logging.getLogger("txcore.nats")

ATTEMPTS_MAX: Final = 4
"""Most times that a DISCARD of an earlier generation may take an op's place while it is written."""

Settle = Callable[[Outcome], None]


class Sender(Protocol):
    """The part of the backend that carries out the steps of a release."""

    def send(self, sending: Sending) -> None:
        """Hand one message to the publisher."""

    def send_op(
        self, names: GroupNames, partition: int, op: Op, deadline_s: float, end: End, *, expected: int | None = None
    ) -> None:
        """Append an op; *expected* is the sequence of the message directly before it on its subject."""

    def look_up(self, names: GroupNames, subject: str, deadline_s: float, end: End) -> None:
        """Find the last message on a subject of the op stream."""

    def explain(
        self, subject: str, error: TxcoreError, deadline_s: float, take: Callable[[Status, TxcoreError | None], None]
    ) -> None:
        """Find out why no stream took a target: *take* gets REFUSED if it is in no stream any more, else UNKNOWN."""


class Release:
    """One resolution under way; settled exactly once."""

    __slots__ = (
        "_attempts",
        "_deadline_s",
        "_expected",
        "_failure",
        "_left",
        "_missing",
        "_names",
        "_resolution",
        "_sender",
        "_settle",
    )

    def __init__(
        self, sender: Sender, names: GroupNames, resolution: Resolution, settle: Settle, deadline_s: float
    ) -> None:
        self._sender = sender
        self._names = names
        self._resolution = resolution
        self._settle = settle
        self._deadline_s = deadline_s
        self._expected = 0
        self._attempts = 0
        self._left = 0
        self._missing: list[int] = []
        self._failure: Outcome | None = None

    @property
    def looks_first(self) -> bool:
        """Whether the last op on the final subject must be looked up before any message is published."""
        op = self._resolution.op
        # A ROLLBACK of generation 0 needs no look-up: no message comes before its op, which is refused if it is late.
        is_alone = not self._resolution.targets and not self._resolution.parked
        return op is not None and op.kind in UNIQUE_KINDS and not (is_alone and not op.generation)

    @property
    def subject(self) -> str:
        """The final subject of the transaction."""
        half = self._resolution.half
        return self._names.final_subject(half.partition, half.transaction_id)

    def start(self) -> None:
        """Take the first step."""
        if self.looks_first:
            self._look(self.looked)
        else:
            self.publish()

    # -- the op found there -----------------------------------------------------------------------------------------

    def _look(self, end: End) -> None:
        self._sender.look_up(self._names, self.subject, self._deadline_s, end)

    def looked(self, status: Status, error: TxcoreError | None, found: Found | None) -> None:
        """Take the last op on the final subject, and take the next step."""
        if status is not Status.DURABLE:
            # No message was published, but no server refused one either.
            self._settle(Outcome(Status.UNKNOWN, _reached(error), missing=tuple(self._resolution.targets)))
        elif not self._is_superseded(found):
            self.publish()

    def _is_superseded(self, found: Found | None) -> bool:
        """Settle if *found* supersedes the op or cannot be read; else remember its sequence for the op to follow."""
        op = self._resolution.op
        assert op is not None
        if found is None:
            self._expected = 0
            return False
        try:
            (holder,) = decode_ops(found.body)
        except (WireFormatError, ValueError) as error:
            unreadable = BackendUnavailableError(
                f"the final op of {id_text(op.transaction_id)} cannot be read: {error}"
            )
            missing = () if self._attempts else tuple(self._resolution.targets)
            self._settle(Outcome(Status.UNKNOWN, unreadable, missing=missing))
            return True
        if excludes(holder.kind, holder.generation, op):
            self._settle(Outcome(Status.SUPERSEDED, decision=holder.kind))
            return True
        self._expected = found.sequence
        return False

    # -- targets ----------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Send the targets or the parked record; the op comes after their answers."""
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
            self._sender.send(Sending(subject, resolution.parked, headers, self._deadline_s, end))
        for index in resolution.targets:
            message = half.messages[index]
            named = encode_headers(
                target_headers(half.group, half.transaction_id, index, message, resolution.by, key_as_header=True)
            )
            named[HEADER_MESSAGE_ID] = named[HEADER_ID]
            end = functools.partial(self._target_ended, index)
            self._sender.send(Sending(message.topic, message.body, header_lines(named), self._deadline_s, end))

    def _target_ended(self, index: int, status: Status, error: TxcoreError | None, _ack: Any) -> None:
        """Take the end of one target, or of the parked record if *index* is -1."""
        if isinstance(error, NoStreamError) and index >= 0:
            topic = self._resolution.half.messages[index].topic
            self._sender.explain(topic, error, self._deadline_s, functools.partial(self._note, index))
        else:
            self._note(index, status, error)

    def _note(self, index: int, status: Status, error: TxcoreError | None) -> None:
        if status is not Status.DURABLE:
            if index >= 0:
                self._missing.append(index)
            if isinstance(error, BackendUnavailableError):
                status = Status.UNKNOWN  # no server refused it
            self._failure = worse(self._failure, Outcome(status, error))
        self._left -= 1
        if not self._left:
            if self._failure is None:
                self._write()
            else:
                failure = self._failure
                self._settle(Outcome(failure.status, failure.error, missing=tuple(sorted(self._missing))))

    # -- the op -----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        op = self._resolution.op
        if op is None:
            self._settle(DURABLE)
            return
        self._attempts += 1
        partition = self._resolution.half.partition
        expected = self._expected if op.kind in UNIQUE_KINDS else None
        self._sender.send_op(self._names, partition, op, self._deadline_s, self._written, expected=expected)

    def _written(self, status: Status, error: TxcoreError | None, ack: Any) -> None:
        if status is Status.DURABLE:
            self._settle(DURABLE)
        elif is_conflict(ack) and self._attempts < ATTEMPTS_MAX:
            self._look(self._looked_again)
        else:
            self._settle(Outcome(status, error))

    def _looked_again(self, status: Status, error: TxcoreError | None, found: Found | None) -> None:
        if status is not Status.DURABLE:
            self._settle(Outcome(Status.UNKNOWN, _reached(error)))
            return
        if self._is_superseded(found):
            if self._resolution.targets:
                identity = id_text(self._resolution.half.transaction_id)
                _log.warning("nats.op_refused_behind_target", extra={"txcore": {"transaction_id": identity}})
        else:
            self._write()


def _reached(error: TxcoreError | None) -> TxcoreError:
    return error or BackendUnavailableError("no server answered")
