"""Which target topics a step reads: those that the halves of its groups name, unless the configuration says more.

Topics of other programs are not read by default. `topics = "all"` reads them, and so finds a message in a topic to
which no half sends it. Where a group sends by the message table, nothing names its topics, and all are read too.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from txcore.audit.verdicts import VIA_TABLE
from txcore.config.audit import ALL, AuditBackendSection
from txcore_spark import expressions as F
from txcore_spark.frames import Frame
from txcore_spark.plan import TARGET, Source
from txcore_spark.rows import UNSEEN, Kind
from txcore_spark.scope import Scope


@dataclass(slots=True)
class Topics:
    """The topics that one step reads on one broker.

    Attributes:
        sources: Those that are read.
        unread: Those that the broker lists and the step leaves out.
        refused: Those of no group that cannot be read, with the reasons.
        is_total: No topic can hold messages of the message table but those that are read.
    """

    sources: list[Source] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    is_total: bool = True


def chosen(scope: Scope, backend: str, listed: Collection[str] | None) -> Topics:
    """Return the topics to read on a broker, by the configuration, the halves and the broker's list."""
    section = _section(scope, backend)
    taps = dict(tap.split("=", 1) for tap in section.taps)
    known = list(listed or ())
    wanted: Collection[str]
    if section.topics and section.topics != ALL:
        wanted = section.topics
    elif section.topics == ALL or scope.table_groups_of(backend):
        wanted = known
    else:
        named = {topic for group in scope.loaded.config.groups for topic in scope.topics_of(group, backend)}
        own = {topic for (_, each), names in scope.named.items() if each == backend for topic in names}
        wanted = sorted(named & (own | set(known)) if listed is not None else ())
    sources = [scope.source(backend, TARGET, topic, topic=topic) for topic in wanted if topic not in taps]
    sources += [scope.source(backend, TARGET, stream, topic=topic) for topic, stream in taps.items()]
    unread = sorted(set(known).difference(wanted, taps, taps.values()))
    return Topics(sources, unread, is_total=listed is not None or bool(sources))


def is_by_journal(scope: Scope, backend: str) -> bool:
    """Return whether the halves must be read before the topics of a broker are known."""
    return not _section(scope, backend).topics


def is_by_default(scope: Scope, source: Source) -> bool:
    """Return whether only the halves or the broker's list name a topic, and not the configuration."""
    section = _section(scope, source.backend)
    is_tap = any(tap.partition("=")[2] == source.name for tap in section.taps)
    return not is_tap and (not section.topics or section.topics == ALL)


def learn(scope: Scope, rows: Frame) -> None:
    """Add to the scope what landed *rows* say of each group's topics, and which groups use the message table."""
    is_half = (F.col("kind") == int(Kind.HALF)) & F.col("topic").is_not_null()
    is_via_table = (F.col("kind") == int(Kind.ROW)) & F.col("code").isin(*VIA_TABLE)
    topic = F.when(is_half, F.col("topic"))
    backend = F.when(is_half, F.col("backend"))
    columns = ("group", backend.alias("backend"), topic.alias("topic"))
    found = rows.where(is_half | is_via_table).select(*columns).distinct()
    groups = {number: name for name, number in scope.groups.items()}
    backends = {number: name for name, number in scope.backends.items()}
    for each in found.collect():
        group = groups[each["group"]]
        if each["topic"] is None:
            scope.by_table.add(group)
        else:
            scope.named.setdefault((group, backends[each["backend"]]), set()).add(each["topic"])


def unseen(scope: Scope, topics: dict[str, Topics]) -> set[tuple[str, str]]:
    """Return the topics, with their brokers, that halves name and the step does not read."""
    found = set()
    for (group, backend), names in scope.named.items():
        if group in scope.loaded.config.groups:
            read = {source.topic for source in topics[backend].sources} if backend in topics else set()
            found |= {(backend, topic) for topic in names - read}
    return found


def marked(rows: Frame, scope: Scope, hidden: Collection[tuple[str, str]]) -> Frame:
    """Return *rows* with the flag `UNSEEN` at the messages that go to the *hidden* topics."""
    if not hidden:
        return rows
    goes = F.lit(False)
    for backend in sorted({backend for backend, _ in hidden}):
        names = [topic for each, topic in hidden if each == backend]
        goes = goes | ((F.col("backend") == scope.backends[backend]) & F.col("topic").isin(names))
    is_hidden = (F.col("kind") == int(Kind.HALF)) & goes
    flags = F.when(is_hidden, F.col("flags").bits_or(UNSEEN)).otherwise(F.col("flags"))
    return rows.with_column("flags", flags)


def _section(scope: Scope, backend: str) -> AuditBackendSection:
    return scope.loaded.config.audit.backends.get(backend) or AuditBackendSection()
