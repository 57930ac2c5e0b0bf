"""`txcore audit outbox`: compare an outbox table with its topics once, and print what differs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from txcore.audit.verdicts import SEVERITIES
from txcore.findings import counted
from txcore_spark.found import Found, counts_of, exit_code_of
from txcore_spark.outboxes.asked import Asked
from txcore_spark.outboxes.comparing import Comparison
from txcore_spark.outboxes.messages import Topics
from txcore_spark.outboxes.table import Table

POLL_S: Final = 1.0
"""Pause, in seconds, between two looks for a message that a relay may still send."""


@dataclass(frozen=True, slots=True)
class Examined:
    """The result of one audit of an outbox.

    Attributes:
        rows, messages: Number of rows that were judged, and of messages that name a row.
        strange: Number of messages in the topics that name no row.
        findings: What differs.
        gaps: What the audit could not see, in words; with one of them it is never a pass.
    """

    rows: int
    messages: int
    strange: int
    findings: list[Found] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Number of findings by verdict."""
        return counts_of(self.findings)

    @property
    def exit_code(self) -> int:
        """0 pass, 1 warnings, 2 violations, 3 inconclusive."""
        return exit_code_of(self.findings, {each.name: severity for each, severity in SEVERITIES.items()}, self.gaps)

    def as_builtin(self) -> dict[str, Any]:
        """Return the result as one object for programs."""
        return {
            "exit_code": self.exit_code,
            "rows": self.rows,
            "messages": self.messages,
            "strange": self.strange,
            "counts": self.counts,
            "gaps": self.gaps,
            "findings": [
                {"verdict": each.verdict, "id": each.name, "topic": each.topic, "what": each.what}
                for each in self.findings
            ],
        }


def examine(asked: Asked, sleep: Callable[[float], None] = time.sleep) -> Examined:
    """Compare all rows with all messages.

    The table is read first, and the ends of the topics are taken after it. So a row that was marked as sent, or deleted
    because it was sent, has its message before that end. For other rows the topics are read on until `grace_s` is over.
    A message without a row is looked for in the table once more, as its row may be a newer one.

    Raises:
        TxcoreError: the database or the broker cannot be reached; a topic that cannot be read is a gap.
    """
    with (
        tempfile.TemporaryDirectory(prefix="txcore-outbox-") as folder,
        closing(Table(asked)) as table,
        closing(Comparison(asked, Path(folder))) as sides,
    ):
        sides.add("row", table.rows())
        until_s = time.monotonic() + asked.grace_s
        sides.join()
        names = sorted({*sides.topics(), *asked.topics})
        with closing(Topics(asked)) as topics:
            sides.add("message", topics.read(names))
            is_over = False
            while sides.is_waiting() and not is_over and not topics.gaps:
                is_over = time.monotonic() >= until_s  # the last ends are those after the grace, however long it read
                if not is_over:
                    sleep(POLL_S)
                sides.add("message", topics.read(names))
        return _examined(asked, table, sides, topics)


def _examined(asked: Asked, table: Table, sides: Comparison, topics: Topics) -> Examined:
    whole_from = sides.whole_from(topics.cut)
    without_row = set(sides.without_row()) if asked.has_all_rows else set()
    orphans = without_row - table.present(without_row) if without_row else set()
    findings = sides.findings([*topics.cut, *topics.unread], whole_from, orphans)
    gaps = _gaps(asked, sides, topics, whole_from, orphans)
    return Examined(
        sides.count("SELECT count(*) FROM ended"),
        sides.count("SELECT count(*) FROM message"),
        topics.strange,
        findings,
        [*topics.gaps, *gaps],
    )


def _gaps(
    asked: Asked, sides: Comparison, topics: Topics, whole_from: dict[str, int], orphans: Collection[bytes]
) -> list[str]:
    """Return what the audit cannot know, in words."""
    found = []
    if not asked.has_all_rows:
        found.append(
            f"rows leave {asked.table} once they are sent, and nothing keeps them: name a table that does with --kept"
        )
    if doubled := sides.doubled_ids():
        found.append(f"{counted(doubled, 'id')} of several rows: one message may count for all rows of its id")
    if asked.created and (undated := sides.count("SELECT count(*) FROM outbox WHERE created_ms IS NULL")):
        found.append(f"{counted(undated, 'row')} without a time in the column {asked.created!r}")
    if unplaced := sides.unplaced(orphans):
        found.append(
            f"{counted(unplaced, 'message')} without a row, in partitions where no message has one: "
            "rows may have been removed that were as old"
        )
    if asked.kept and (unkept := sides.unkept()):
        found.append(f"{asked.kept} lacks {counted(unkept, 'row')} of {asked.table}, so it does not keep all")
    found += [
        f"the beginning of topic {topic!r} is gone: judge newer rows alone, with --created and --since"
        for topic in sorted(topics.cut)
        if topic not in whole_from or asked.since_ms < whole_from[topic]
    ]
    return found
