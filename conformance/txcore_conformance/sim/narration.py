"""Says what happens in a playground, in plain English: one sentence for each new record, row and command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from txcore import wire
from txcore.ids import parse_id
from txcore.records import HalfRecord, LogKind, Op, OpKind, Resolution
from txcore.runtime.commands import Call
from txcore_conformance.sim.archive import ops_in
from txcore_conformance.sim.cast import Cast
from txcore_conformance.sim.process import Process


class Narrator:
    """Collects sentences while events are played.

    Attributes:
        numbers: The orders' numbers, by transaction id.
    """

    def __init__(self, cast: Cast) -> None:
        self.numbers: dict[bytes, int] = {}
        self._cast = cast
        self._said: list[str] = []
        self._record_counts = dict.fromkeys(LogKind, 0)
        self._targets = 0
        self._copies: dict[str, int] = {}
        self._rows: dict[bytes, int] = {}
        self._open: set[bytes] = set()
        self._locked = 0

    def news(self) -> tuple[str, ...]:
        """Return what has happened since the last call."""
        said = [*self._said, *self._in_database(), *self._in_logs(), *self._in_topics()]
        self._said.clear()
        return tuple(said)

    # -- what a process is about to do ---------------------------------------------------------------------------------

    def producer_yields(self, _: Process, command: Any) -> None:
        """Say what a producer hands over next."""
        if isinstance(command, HalfRecord):
            name = self._name(command.transaction_id)
            self._said.append(
                f"The producer sends the message of {name} to the half log, in one hidden record: the half."
            )
        elif isinstance(command, Resolution) and command.op is not None:
            self._said.append(self._producer_ends(command, command.op))
        elif isinstance(command, Call) and _name_of(command) == "commit":
            self._said.append("The broker has certainly stored the half, so the producer asks the database to commit.")

    def _producer_ends(self, command: Resolution, op: Op) -> str:
        name = self._name(command.half.transaction_id)
        if op.kind == OpKind.COMMIT:
            return f"The database has committed {name}, so the producer asks the broker to publish the message."
        if op.kind == OpKind.NUDGE:
            return f"The producer is too late for {name}: it publishes nothing, and leaves the message to the checker."
        return f"The producer drops the half of {name}."

    def checker_yields(self, _: Process, command: Any) -> None:
        """Say what a checker hands over next."""
        if isinstance(command, Call) and _name_of(command) == "check":
            names = self._names(command.args[0])
            self._said.append(f"No op ends the half of {names}, so the checker asks the database what became of it.")
        elif isinstance(command, Resolution) and command.op is not None:
            name = self._name(command.half.transaction_id)
            if command.op.kind == OpKind.COMMIT:
                self._said.append(f"The database says that {name} was committed, so the checker publishes the message.")
            elif command.op.kind == OpKind.ROLLBACK:
                self._said.append(f"The database says that {name} is not committed, so the checker drops the half.")

    # -- what has changed ----------------------------------------------------------------------------------------------

    def _in_database(self) -> Iterator[str]:
        database = self._cast.database
        rows, opened = dict(database.rows), {each.transaction_id for each in database.open if each.transaction_id}
        for identity in opened - self._open:
            yield (
                f"The producer opens a database transaction and inserts two rows: {self._name(identity)}, and a fence "
                "row with the transaction's id. No other connection sees them yet."
            )
        for identity in rows.keys() - self._rows.keys():
            if rows[identity] == 2:
                yield (
                    f"There is no fence row of {self._name(identity)}, so the check inserts a tombstone in its place: "
                    "that order can never be committed any more."
                )
            else:
                yield f"The database commits: {self._name(identity)} and its fence row are there, both at once."
        for identity in self._open - opened - rows.keys():
            yield f"The database rolls back the open transaction: {self._name(identity)} was never placed."
        self._rows, self._open = rows, opened
        locked = self._cast.world.sometimes["fence locked"]
        if locked > self._locked:
            self._locked = locked
            yield "The row is locked by an open transaction. That is no answer: the checker asks again soon."

    def _in_logs(self) -> Iterator[str]:
        archive = self._cast.archive
        for kind in (LogKind.HALF, LogKind.OP):
            records = archive.records(kind, 0)
            known, self._record_counts[kind] = self._record_counts[kind], len(records)
            for record in records[known:]:
                if kind is LogKind.HALF:
                    name = self._name(wire.decode_half(record.body).transaction_id)
                    yield f"The half of {name} is stored in the half log, which no consumer reads."
                else:
                    yield from filter(None, map(self._about_op, ops_in(record)))

    def _about_op(self, op: Op) -> str:
        if op.kind == OpKind.CLAIM:
            return (
                "A checker writes CLAIM into the op log: from here on it owns the partition, and any older one stops."
            )
        if op.kind == OpKind.TICK:
            return "A half is due. The checker writes TICK, and judges nothing before it has read that back."
        name = self._name(op.transaction_id)
        writer = "the checker" if op.by.startswith("c:") else "the producer"
        if op.kind == OpKind.COMMIT:
            return (
                f"COMMIT is in the op log, written by {writer}: {name} is finished, and no checker asks about it again."
            )
        if op.kind == OpKind.ROLLBACK:
            return f"ROLLBACK is in the op log, written by {writer}: the message of {name} is never published."
        if op.kind == OpKind.NUDGE:
            return f"NUDGE is in the op log: the producer asks for an early check of {name}."
        return f"{OpKind(op.kind).name} of {name} is in the op log."

    def _in_topics(self) -> Iterator[str]:
        targets = [target for messages in self._cast.world.broker.topics.values() for target in messages]
        for target in targets[self._targets :]:
            text = str(target.headers[wire.HEADER_ID])
            copies = self._copies[text] = self._copies.get(text, 0) + 1
            name = self._name(parse_id(text.rpartition(":")[0]))
            if copies == 1:
                yield f"The message of {name} is in its topic: consumers receive it."
            else:
                yield f"The message of {name} comes again with the same txcore-id: a consumer's inbox drops this copy."
        self._targets = len(targets)

    def _names(self, identities: Any) -> str:
        numbers = sorted(self.numbers.get(identity, 0) for identity in identities)
        return f"order{'s' * (len(numbers) > 1)} {' and '.join(map(str, numbers))}"

    def _name(self, identity: bytes) -> str:
        return f"order {self.numbers.get(identity, 0)}"


def _name_of(call: Call) -> str:
    return getattr(call.function, "__name__", "")
