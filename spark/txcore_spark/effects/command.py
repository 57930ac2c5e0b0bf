"""`txcore audit effects`: compare the newest run's records of a group with its business rows and its consumers."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txcore.clock import Clock, SystemClock
from txcore.config import Loaded
from txcore.errors import UsageError
from txcore.findings import counted
from txcore.ids import born_ms, first_id_at
from txcore_spark.effects import databases
from txcore_spark.effects.asked import Asked, Consumer, asked_of
from txcore_spark.effects.comparing import COLUMNS, Births, Comparison, Difference, random_of
from txcore_spark.found import Found, counts_of, exit_code_of
from txcore_spark.limits import time_text
from txcore_spark.readers.fence import pruned_below
from txcore_spark.rows import BUCKET_MS
from txcore_spark.store import Store


@dataclass(slots=True)
class Examined:
    """The result for one group.

    Attributes:
        group: Its name.
        run: Number of the run whose records were compared.
        transactions, business, received: Numbers of transactions that were compared: in the run, in business rows,
            and in the inbox of each consumer.
        findings: What differs.
        notes: What was not judged, in words, for a reason that is none of the audit's.
        gaps: What could not be seen, in words; with one of them it is never a pass.
    """

    group: str
    run: int
    transactions: int = 0
    business: int | None = None
    received: dict[str, int] = field(default_factory=dict)
    findings: list[Found] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Number of findings by difference."""
        return counts_of(self.findings)

    @property
    def exit_code(self) -> int:
        """0 pass, 1 warnings, 2 violations, 3 inconclusive."""
        return exit_code_of(self.findings, {each.name: each.severity for each in Difference}, self.gaps)

    def as_builtin(self) -> dict[str, Any]:
        """Return the result as one object for programs."""
        return {
            "group": self.group,
            "run": self.run,
            "exit_code": self.exit_code,
            "transactions": self.transactions,
            "business": self.business,
            "received": self.received,
            "counts": self.counts,
            "notes": self.notes,
            "gaps": self.gaps,
            "findings": [
                {"difference": each.verdict, "id": each.name, "topic": each.topic, "what": each.what}
                for each in self.findings
            ],
        }


def examine(loaded: Loaded, group: str, clock: Clock | None = None) -> Examined:
    """Compare one group.

    The run's records are older than both ends, which are read now. So a transaction of a business row that the run has
    not seen as committed is looked for in the fence once more, and an inbox row counts only where the run must have
    seen its message.

    Raises:
        UsageError: the configuration does not describe the group's ends, or no run has kept rows.
        BackendUnavailableError: a database cannot be reached.
    """
    asked = asked_of(loaded, group)
    store = Store(loaded.config.audit.store)
    manifest = _manifest(store, group)
    births = _births(asked, manifest)
    examined = Examined(group, manifest["number"], gaps=_gaps(asked, manifest))
    with (
        tempfile.TemporaryDirectory(prefix="txcore-effects-") as folder,
        closing(Comparison(Path(folder), births, manifest["now_ms"])) as sides,
    ):
        hours = range(born_ms(births.first) // BUCKET_MS, manifest["now_ms"] // BUCKET_MS + 1)
        sides.add_facts(store.rows(manifest, hours, COLUMNS), manifest["groups"][group])
        examined.transactions = sides.count("fact")
        if asked.business:
            _compare_business(asked, births, sides, examined)
        for consumer in asked.consumers:
            now_ms = (clock or SystemClock()).wall_ms()
            _compare_inbox(asked, consumer, births, store, manifest, sides, examined, now_ms)
    return examined


def _manifest(store: Store, group: str) -> dict[str, Any]:
    """Return the manifest of the newest run that has kept its rows, and all before it that it builds on."""
    for number in reversed(store.finished()):
        manifest = store.manifest(number)
        if number in manifest["rows"] and group in manifest["groups"]:
            return manifest
    raise UsageError(f"{store.uri} has no run that kept the rows of {group}: run txcore audit first, without --no-land")


def _births(asked: Asked, manifest: Mapping[str, Any]) -> Births:
    now_ms: int = manifest["now_ms"]
    first_ms = max(now_ms - round(asked.window_s * 1000), manifest["since_ms"], 0)
    first_ms = max(first_ms, manifest["judged_from_ms"].get(asked.group, 0))
    until_ms = min(now_ms - round((asked.settle_s + asked.skew_s) * 1000), manifest["until_ms"])
    return Births(first_id_at(first_ms), first_id_at(max(first_ms, until_ms)))


def _gaps(asked: Asked, manifest: Mapping[str, Any]) -> list[str]:
    """Return why the run's records of the group are not whole."""
    run, group = manifest["number"], asked.group
    found = []
    if group in manifest["withheld"]:
        found.append(f"run {run} could not read all logs and topics of {group}: no missing message proves anything")
    if asked.business and group in manifest["rows_withheld"]:
        found.append(f"run {run} could not read all fence rows of {group}")
    return found


def _compare_business(asked: Asked, births: Births, sides: Comparison, examined: Examined) -> None:
    sides.add_business(databases.business_rows(asked.database, asked.business, births.first, births.until))
    examined.business = sides.count("business")
    uncommitted = sides.uncommitted()
    horizon = bytes(16)
    if uncommitted:
        for url, table in asked.fences:
            horizon = max(horizon, pruned_below(url, table))
            uncommitted -= databases.answered_of(url, table, asked.group, uncommitted)
    pruned = {each for each in uncommitted if each < horizon}
    if pruned:
        examined.notes.append(
            f"{counted(len(pruned), 'transaction')} of business rows, older than what the fence remembers, "
            f"which begins at {time_text(born_ms(horizon))}"
        )
    examined.findings += [*sides.unannounced(uncommitted - pruned), *sides.unfounded()]


def _compare_inbox(
    asked: Asked,
    consumer: Consumer,
    births: Births,
    store: Store,
    manifest: Mapping[str, Any],
    sides: Comparison,
    examined: Examined,
    now_ms: int,
) -> None:
    horizon = pruned_below(consumer.database, consumer.inbox)
    sides.set_inbox(databases.inbox_rows(consumer, asked.group, births.first))
    examined.received[consumer.name] = sides.count("inbox")
    found = [*sides.unreceived(consumer.topics, now_ms - round(asked.settle_s * 1000), horizon)]
    if asked.group in manifest["withheld"] or _is_blind(asked.group, manifest):
        examined.notes.append(f"{consumer.name}: rows of its inbox without a message are not judged")
    else:
        suspects = sides.unexplained()
        unknown = {random for random in suspects if not sides.knows(random)}
        delayed = _born_before(store, manifest, unknown) if asked.group in manifest["by_table"] else set()
        found += [each for random, some in suspects.items() if random not in delayed for each in some]
    examined.findings += [Found(each.verdict, each.name, each.topic, f"{consumer.name}: {each.what}") for each in found]


def _born_before(store: Store, manifest: Mapping[str, Any], wanted: Collection[bytes]) -> set[bytes]:
    """Return those of *wanted*, random parts of ids, that a transaction of any hour has.

    The inbox has a delayed message under the time at which it was due, which may be months after its birth.
    """
    found = set[bytes]()
    if wanted:
        asked = pa.array(sorted(wanted), pa.binary())
        for table in store.rows(manifest, [int(each) for each in manifest["buckets"]], ["tx"]):
            random = random_of(table["tx"])
            found.update(random.filter(pc.is_in(random, asked)).to_pylist())
    return found


def _is_blind(group: str, manifest: Mapping[str, Any]) -> bool:
    """Return whether a message of the group may be in a topic that the run did not read."""
    unread = any(manifest["unread"].values()) or any(manifest["refused"].values())
    return group in manifest["by_table"] and unread


def examine_all(loaded: Loaded, group: str = "") -> Iterator[Examined]:
    """Yield the result for each group whose ends the configuration describes, or for one.

    Raises: as `examine`.
    """
    groups = [group] if group else list(loaded.config.audit.effects)
    if not groups:
        raise UsageError("the configuration has no [audit.effects.GROUP]: name there the business rows or inboxes")
    for each in groups:
        yield examine(loaded, each)
