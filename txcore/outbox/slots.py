"""The statements of a relay: slots held, rows read in order, deleted once sent, parked, resumed. On a border.

On PostgreSQL, MariaDB and MySQL a slot is held by the lock on its row, which dies with the relay's connection. SQLite
has one lock for the whole file, so there a slot is leased: `owner` holds it up to `until_ms` of the database's clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from txcore.ids import TransactionId, known_id
from txcore.message_table import SLOT_COUNT, Refused, TableRow
from txcore.sqlfence import later
from txcore.sqlfence.border import MYSQL, POSTGRESQL, SQLITE, Border
from txcore.sqlfence.dialects import Dialect, decode_id
from txcore.sqlfence.later import BELL, TURN
from txcore.sqlfence.messages import ASLEEP, DROPPED

REASON_MAX: Final = 500
RESTING_MAX: Final = 500
"""Most lanes that a statement excludes; with more, their slots rest as a whole."""
NAMED_MAX: Final = 200
"""Most rows that a statement names by a parameter each."""
PAGE_BYTES_MAX: Final = 32 << 20
"""Most bytes of messages in the one page that a relay holds; a larger message is the only large one of its page."""

UNSEEN_S: Final = 60.0
"""Time, in seconds, without a note of a relay after which a group has none."""

_NOW: Final = {POSTGRESQL: "clock_timestamp()", MYSQL: "NOW(3)", SQLITE: "'now'"}


@dataclass(frozen=True, slots=True)
class ParkedMessage:
    """A message that its target refused too often, or that cannot be read: for operators."""

    transaction_id: TransactionId
    index: int
    tries: int
    reason: str
    body: bytes


@dataclass(frozen=True, slots=True)
class TableStats:
    """Rows to be sent, rows parked, the age of the oldest one to be sent (0 for none), rows that were dropped.

    Attributes:
        later: Delayed rows that wait until they are due; they are in none of the other counts.
        cancelled: Delayed rows that were cancelled, until they are pruned.
        next_due_s: Seconds until the next delayed row is due, below 0 where one is; None when none waits.
        relay_seen_s: Seconds since a relay of the group has last noted that it runs; None if none ever did.
        reason: Why its target refused the oldest row that is still to be sent, else the oldest parked one; "" for none.
    """

    waiting: int
    parked: int
    oldest_age_s: float
    dropped: int = 0
    reason: str = ""
    later: int = 0
    cancelled: int = 0
    next_due_s: float | None = None
    relay_seen_s: float | None = None

    @property
    def is_unserved(self) -> bool:
        """Whether messages wait, now or for their time, and no relay has been seen for `UNSEEN_S`."""
        is_seen = self.relay_seen_s is not None and self.relay_seen_s <= UNSEEN_S
        return bool(self.waiting or self.later) and not is_seen


EMPTY: Final = TableStats(0, 0, 0.0)


class Page(NamedTuple):
    """Rows of some slots, in the order of their insertion.

    Attributes:
        left_out: Slots whose first row did not fit.
        is_cut: Whether any row did not fit.
    """

    rows: list[TableRow]
    left_out: Sequence[int] = ()
    is_cut: bool = False


class Slots:
    """The statements for one group. Immutable."""

    def __init__(self, dialect: Dialect, group: str, owner: str) -> None:
        self.dialect = dialect
        self._group = {"producer_group": group}
        self._owner = owner
        self._message, self._slot = dialect.tables.message, dialect.tables.slot
        self._now_ms = dialect.as_ms.format(_NOW[dialect.family])
        self._is_leased = dialect.family == SQLITE

    def create(self, border: Border) -> None:
        """Make the rows that are missing."""
        sql = f"SELECT slot FROM {self._slot} WHERE producer_group = :producer_group"  # noqa: S608
        there = {int(row[0]) for row in border.rows(sql, self._group)}
        missing = [slot for slot in range(TURN, SLOT_COUNT) if slot not in there]
        if not missing:
            return
        tail = "ON DUPLICATE KEY UPDATE beats = beats" if self.dialect.family == MYSQL else "ON CONFLICT DO NOTHING"
        places = ", ".join(f"(:producer_group, {slot})" for slot in missing)
        border.change(f"INSERT INTO {self._slot} (producer_group, slot) VALUES {places} {tail}", self._group)  # noqa: S608

    def busy(self, border: Border) -> list[int]:
        """Return the slots that have a row to send, without waiting for a lock; on SQLite only free slots."""
        free = f"AND s.until_ms <= {self._now_ms} " if self._is_leased else ""
        # With LIMIT the index is asked once for each slot; PostgreSQL turns EXISTS into a join over all rows.
        sql = (
            f"SELECT s.slot FROM {self._slot} s WHERE s.producer_group = :producer_group AND s.slot >= 0 {free}"  # noqa: S608
            f"AND (SELECT 1 FROM {self._message} m WHERE m.producer_group = s.producer_group AND m.parked = 0 "
            "AND m.slot = s.slot LIMIT 1) IS NOT NULL"
        )
        return [int(row[0]) for row in border.rows(sql, self._group)]

    def hold(self, border: Border, slots: Sequence[int]) -> list[int]:
        """Hold the free ones of *slots*, until the transaction's end; on SQLite the transaction itself holds them."""
        if self._is_leased:
            return list(slots)
        # In the order of the primary key nothing is sorted, so no further row is locked on the way.
        sql = (
            f"SELECT slot FROM {self._slot} WHERE producer_group = :producer_group AND slot IN ({_list(slots)}) "  # noqa: S608
            "ORDER BY slot FOR UPDATE SKIP LOCKED"
        )
        return [int(row[0]) for row in border.rows(sql, self._group)]

    def turn(self, border: Border, row_max: int) -> int:
        """Turn delayed rows that are due, unless another relay does it now; returns their number. See `later.turn`."""
        if not self.hold(border, [TURN]):
            return 0
        return later.turn(self.dialect, border, self._group["producer_group"], row_max)

    def lease(self, border: Border, slots: Sequence[int], hold_ms: int) -> None:
        """On SQLite, hold *slots* for *hold_ms* after the transaction; elsewhere do nothing."""
        if self._is_leased:
            sql = (
                f"UPDATE {self._slot} SET owner = :owner, until_ms = {self._now_ms} + {int(hold_ms)} "  # noqa: S608
                f"WHERE producer_group = :producer_group AND slot IN ({_list(slots)})"
            )
            border.change(sql, self._group | {"owner": self._owner})

    def release(self, border: Border, slots: Sequence[int]) -> None:
        """End a lease of ours that is still in force; a lock ends with its transaction."""
        sql = (
            f"UPDATE {self._slot} SET until_ms = 0 WHERE producer_group = :producer_group "  # noqa: S608
            f"AND slot IN ({_list(slots)}) AND owner = :owner"
        )
        border.change(sql, self._group | {"owner": self._owner})

    def page(self, border: Border, slots: Sequence[int], resting: Collection[int], each_max: int) -> Page:
        """Return the oldest rows of each slot that are not parked, within `PAGE_BYTES_MAX` together.

        One statement for all slots: while producers are busy, each statement waits for the processor like them. It
        reads the bodies of small rows, which always fit together; a second one reads those of large rows that fit.
        """
        left_out: dict[int, list[int]] = {slot: [] for slot in slots}
        for lane in resting:
            if lane % SLOT_COUNT in left_out:
                left_out[lane % SLOT_COUNT].append(lane)
        small_max = PAGE_BYTES_MAX // 2 // max(len(slots) * each_max, 1)
        pages = [
            self._page(slot, lanes, each_max, small_max)
            for slot, lanes in left_out.items()
            if len(lanes) <= RESTING_MAX
        ]
        found = border.rows(" UNION ALL ".join(pages), self._group) if pages else []
        rows = [
            TableRow(decode_id(row[0]), int(row[1]), int(row[2]), bytes(row[3] or b""), int(row[4]), int(row[5]))
            for row in found
        ]
        rows.sort(key=lambda row: row.number)
        large = {int(row[5]): int(row[6]) for row in found if row[3] is None}
        return self._with_bodies(border, slots, rows, large) if large else Page(rows)

    def _page(self, slot: int, left_out: Sequence[int], row_max: int, small_max: int) -> str:
        but = f"AND lane NOT IN ({_list(left_out)}) " if left_out else ""
        body = f"CASE WHEN length(body) <= {int(small_max)} THEN body END AS body"
        return (
            f"SELECT * FROM (SELECT transaction_id, message_index, lane, {body}, tries, number, length(body) AS size "  # noqa: S608
            f"FROM {self._message} WHERE producer_group = :producer_group AND parked = 0 AND slot = {int(slot)} {but}"
            f"ORDER BY number LIMIT {int(row_max)}) AS s{int(slot)}"
        )

    def _with_bodies(
        self, border: Border, slots: Sequence[int], rows: Sequence[TableRow], large: dict[int, int]
    ) -> Page:
        """Return the page of the *rows* that fit, with the bodies of *large* ones, whose sizes are by number."""
        fitting, left_out = _fitting(slots, rows, large)
        wanted = [row for row in fitting if row.number in large]
        bodies: dict[int, bytes] = {}
        for start in range(0, len(wanted), NAMED_MAX):
            which, values = self._named(wanted[start : start + NAMED_MAX])
            sql = f"SELECT number, body FROM {self._message} WHERE {which}"  # noqa: S608
            bodies |= {int(row[0]): bytes(row[1]) for row in border.rows(sql, values)}
        full = [msgspec.structs.replace(row, body=bodies[row.number]) for row in wanted if row.number in bodies]
        small = [row for row in fitting if row.number not in large]
        in_order = sorted([*small, *full], key=lambda row: row.number)
        return Page(in_order, left_out, is_cut=len(fitting) < len(rows))

    def flush(self, border: Border) -> None:
        """Write a row: its commit flushes every commit that this server has shown before."""
        sql = f"UPDATE {self._slot} SET beats = beats + 1 WHERE producer_group = :producer_group AND slot = {BELL}"  # noqa: S608
        border.change(sql, self._group)

    def delete(self, border: Border, rows: Sequence[TableRow]) -> None:
        """Delete the sent rows."""
        count_max = max(len(rows), 1) if self.dialect.family == POSTGRESQL else NAMED_MAX
        for start in range(0, len(rows), count_max):
            which, values = self._named(rows[start : start + count_max])
            border.change(f"DELETE FROM {self._message} WHERE {which}", values)  # noqa: S608

    def note(self, border: Border, refused: Refused) -> None:
        """Count one more try of a row, unless another relay has parked it since this one lost its lease."""
        which, values = self._named([refused.row])
        sql = (
            f"UPDATE {self._message} SET tries = tries + 1, reason = :reason, parked = {int(refused.is_parked)} "  # noqa: S608
            f"WHERE parked = 0 AND {which}"
        )
        border.change(sql, values | {"reason": refused.reason[:REASON_MAX]})

    def sleep(self, border: Border, *, is_asleep: bool) -> bool:
        """Store whether producers must ring to be noticed at once; returns whether that has changed."""
        sql = (
            f"UPDATE {self._slot} SET owner = :state "  # noqa: S608
            f"WHERE producer_group = :producer_group AND slot = {BELL} AND owner <> :state"
        )
        return border.change(sql, self._group | {"state": ASLEEP if is_asleep else ""}) > 0

    def stats(self, border: Border) -> TableStats:
        """Count the rows."""
        sql = (
            f"SELECT parked, count(*), {self._now_ms} - {self.dialect.as_ms.format('min(created)')}, "  # noqa: S608
            f"min(CASE WHEN tries > 0 THEN number END) "
            f"FROM {self._message} WHERE producer_group = :producer_group GROUP BY parked"
        )
        found = {int(row[0]): row for row in border.rows(sql, self._group)}
        counts = {parked: int(row[1]) for parked, row in found.items()}
        age_ms = max(int(found[0][2]), 0) if 0 in found else 0
        refused = [row[3] for parked, row in sorted(found.items()) if parked != DROPPED and row[3] is not None]
        reason = self._reason(border, int(refused[0])) if refused else ""
        found_later = later.stats(self.dialect, border, self._group["producer_group"])
        seen_ms = later.relay_seen_ms(self.dialect, border).get(self._group["producer_group"])
        return TableStats(
            counts.get(0, 0),
            counts.get(1, 0),
            age_ms / 1000,
            counts.get(DROPPED, 0),
            reason,
            *found_later,
            None if seen_ms is None else seen_ms / 1000,
        )

    def unserved_s(self, border: Border) -> float | None:
        """Return for how long, at least, messages have waited without a relay; None while one is seen or none waits.

        As `TableStats.is_unserved`, without counting the rows. It is infinite where no relay has ever been seen.
        """
        sql = f"SELECT 1 FROM {self._message} WHERE producer_group = :producer_group AND parked = 0 LIMIT 1"  # noqa: S608
        group = self._group["producer_group"]
        seen_s = later.relay_seen_ms(self.dialect, border).get(group, math.inf) / 1000
        is_waiting = bool(border.rows(sql, self._group)) or later.waits(self.dialect, border, group)
        return seen_s if is_waiting and seen_s > UNSEEN_S else None

    def beat(self, border: Border) -> None:
        """Note that a relay of the group runs now."""
        sql = (
            f"UPDATE {self._slot} SET until_ms = {later.NOW_MS[self.dialect.family]} "  # noqa: S608
            f"WHERE producer_group = :producer_group AND slot = {BELL}"
        )
        border.change(sql, self._group)

    def _reason(self, border: Border, number: int) -> str:
        """Return the reason in the row of this number."""
        sql = f"SELECT reason FROM {self._message} WHERE producer_group = :producer_group AND number = {number}"  # noqa: S608
        return next((str(row[0] or "") for row in border.rows(sql, self._group)), "")

    def parked(self, border: Border, count_max: int, *, is_dropped: bool = False) -> list[ParkedMessage]:
        """Return the parked messages, or the dropped ones, oldest first."""
        sql = (
            f"SELECT transaction_id, message_index, tries, reason, body FROM {self._message} "  # noqa: S608
            f"WHERE producer_group = :producer_group AND parked = {DROPPED if is_dropped else 1} "
            f"ORDER BY slot, number LIMIT {int(count_max)}"
        )
        return [
            ParkedMessage(known_id(decode_id(row[0])), int(row[1]), int(row[2]), str(row[3] or ""), bytes(row[4]))
            for row in border.rows(sql, self._group)
        ]

    def resume(self, border: Border, transaction_id: bytes) -> int:
        """Retry the parked messages of a transaction, with tries counted from zero."""
        return self._change_parked(border, transaction_id, "parked = 0, tries = 0", {})

    def drop(self, border: Border, transaction_id: bytes, reason: str) -> int:
        """Drop the parked messages of a transaction, for good; the reason precedes their targets' reasons."""
        joined = "CAST(:reason AS text) || COALESCE(reason, '')"
        if self.dialect.family == MYSQL:
            joined = "CONCAT(:reason, COALESCE(reason, ''))"
        values = {"reason": f"{reason[:REASON_MAX]}; it was parked for: "}
        return self._change_parked(border, transaction_id, f"parked = {DROPPED}, reason = {joined}", values)

    def _change_parked(self, border: Border, transaction_id: bytes, change: str, values: dict[str, Any]) -> int:
        sql = (
            f"UPDATE {self._message} SET {change} WHERE producer_group = :producer_group "  # noqa: S608
            f"AND parked = 1 AND transaction_id = {self.dialect.place('id')}"
        )
        return border.change(sql, self._group | values | {"id": self.dialect.encode(transaction_id)})

    def _named(self, rows: Iterable[TableRow]) -> tuple[str, dict[str, Any]]:
        """Return the condition for *rows*: by number where that is the key, else by transaction id and index."""
        if self.dialect.family == MYSQL:
            return f"number IN ({_list(row.number for row in rows)})", {}
        if self.dialect.family == POSTGRESQL:  # two texts: hundreds of parameters cost more than the statement
            found = [(str(self.dialect.encode(row.transaction_id)), str(row.index)) for row in rows]
            ids, indexes = (f"{{{','.join(column)}}}" for column in zip(*found, strict=True))
            pairs = "unnest(CAST(CAST(:ids AS text) AS uuid[]), CAST(CAST(:indexes AS text) AS integer[]))"
            return f"(transaction_id, message_index) IN (SELECT * FROM {pairs})", {"ids": ids, "indexes": indexes}  # noqa: S608
        values: dict[str, Any] = {}
        names = []
        for number, row in enumerate(rows):
            values |= {f"i{number}": self.dialect.encode(row.transaction_id), f"n{number}": row.index}
            names.append(f"({self.dialect.place(f'i{number}')}, :n{number})")
        return f"(transaction_id, message_index) IN (VALUES {', '.join(names)})", values


def _fitting(slots: Sequence[int], rows: Sequence[TableRow], large: dict[int, int]) -> tuple[list[TableRow], list[int]]:
    """Return the rows that fit in one page, slot by slot in turn, and the slots that have none of them.

    A row that does not fit ends its slot's part. The first row of all is taken, however large. *large* has the sizes of
    rows whose bodies are not read yet, by number; the other rows always fit.
    """
    left = PAGE_BYTES_MAX - sum(len(row.body) for row in rows)
    queues = {slot: deque(row for row in rows if row.slot == slot) for slot in slots}
    fitting: list[TableRow] = []
    left_out: list[int] = []
    turns = deque((slot, True) for slot in slots if queues[slot])
    while turns:
        slot, is_first = turns.popleft()
        row = queues[slot].popleft()
        size = large.get(row.number, 0)
        if fitting and size > left:
            left_out += [slot] if is_first else []
            continue
        fitting.append(row)
        left = max(left - size, 0)
        if queues[slot]:
            turns.append((slot, False))
    return fitting, left_out


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(str(int(number)) for number in numbers)
