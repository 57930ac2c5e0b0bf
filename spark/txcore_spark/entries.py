"""The entries of a certificate, made of the rows that a run kept: per transaction its outcome and its digests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from txcore.audit.certificate import COMMITTED, OPEN, ROLLED_BACK, Entry
from txcore.audit.verdicts import FAR, SENT, STATES
from txcore.digest import joined
from txcore.ids import born_ms, id_text
from txcore.op_rules import outcome_of
from txcore.records import MARK_KINDS, OpKind
from txcore_spark.rows import NO_ID, Kind, bucket_of

FINDINGS_MAX: Final = (1 << 31) - 1
"""Number of findings that no run has: all of them are read."""
COLUMNS: Final = (
    "tx", "kind", "code", "group", "source", "partition", "position", "place", "index", "digest_high", "digest_low",
    "digest",
)  # fmt: skip
"""The columns of a row on which entries rest."""
_MARKS: Final = frozenset(map(int, MARK_KINDS))


@dataclass(frozen=True, slots=True)
class Facts:
    """An entry, and the digests of its messages in their order."""

    entry: Entry
    messages: list[bytes]


@dataclass(slots=True)
class _Seen:
    """What the rows of one transaction say."""

    group: int = -1
    commit: int = FAR
    committed: int = FAR
    rollback: int = FAR
    reading: int = -1
    row: bytes = b""
    digests: dict[int, set[bytes | None]] = field(default_factory=dict)

    def add(self, row: Sequence[Any]) -> None:
        _, kind, code, group, _, _, _, place, index, high, low, digest = row
        self.group = max(self.group, group)
        if kind == Kind.OP and outcome_of(code) == OpKind.COMMIT:
            self.committed = min(self.committed, place)  # with the COMMITTED of an owner's release
            if code != OpKind.COMMITTED:
                self.commit = min(self.commit, place)
        elif kind == Kind.OP and code == OpKind.ROLLBACK:
            self.rollback = min(self.rollback, place)
        elif kind == Kind.TARGET:
            self.digests.setdefault(index, set()).add(digest)
        elif kind == Kind.ROW and place * STATES + code > self.reading:
            self.reading = place * STATES + code
            self.row = (
                b"" if high is None else high.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big", signed=True)
            )

    def outcome(self) -> str:
        if self.rollback < self.committed:
            return ROLLED_BACK
        if self.commit < FAR:
            return COMMITTED
        return COMMITTED if self.reading >= 0 and self.reading % STATES == SENT else OPEN

    def messages(self) -> list[bytes]:
        """Return the digests of the messages 0, 1, 2, …; none where one is missing or there are two under one index."""
        found = [each for index in sorted(self.digests) for each in self.digests[index] if each is not None]
        is_whole = sorted(self.digests) == list(range(len(found)))
        return found if is_whole and all(len(each) == 1 for each in self.digests.values()) else []


def entries_of(
    manifest: Mapping[str, Any], buckets: Sequence[int], rows: Iterable[pa.Table], verdicts: Mapping[bytes, list[str]]
) -> dict[int, list[Facts]]:
    """Return the entries of some hours of birth, each hour in the order of its ids.

    Args:
        manifest: The run's; only births in its window count.
        buckets: The hours.
        rows: Their rows, with the columns of `COLUMNS`.
        verdicts: The findings on each transaction.
    """
    seen: dict[bytes, _Seen] = {}
    for table in rows:
        for batch in table.to_batches():
            for row in zip(*(batch[name].to_pylist() for name in COLUMNS), strict=True):
                is_mark = row[1] == Kind.OP and row[2] in _MARKS
                if row[1] < Kind.COPY and not is_mark and row[0] != NO_ID:
                    seen.setdefault(row[0], _Seen()).add(row)
    names = {number: name for name, number in manifest["groups"].items()}
    found: dict[int, list[Facts]] = {bucket: [] for bucket in buckets}
    for identity in sorted(seen):
        if manifest["since_ms"] <= born_ms(identity) < manifest["until_ms"]:
            each = seen[identity]
            messages = each.messages()
            entry = Entry(
                id=id_text(identity),
                group=names.get(each.group, ""),
                outcome=each.outcome(),
                digest=joined(messages).hex() if messages else "",
                row=each.row.hex(),
                findings=sorted(verdicts.get(identity, [])),
            )
            found[bucket_of(identity)].append(Facts(entry, messages))
    return found
