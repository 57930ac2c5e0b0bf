"""The scope of an audit: brokers, groups, databases and topics, each with its number in the rows.

Numbers must mean the same in every run of one store, so they are kept in its manifests, and new ones are only added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from txcore.config import Loaded
from txcore.errors import UsageError
from txcore_spark.plan import FENCE, HALF, OP, PARKED, TARGET, Source
from txcore_spark.rows import Place


@dataclass(slots=True)
class Scope:
    """Names and numbers of one audit.

    Attributes:
        backends, groups: Name to number.
        sources: Every log, topic and fence table, by number.
    """

    loaded: Loaded
    backends: dict[str, int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    sources: dict[int, Source] = field(default_factory=dict)

    def backends_of(self, group: str) -> list[str]:
        """Return the brokers that hold logs of *group*, its own one first."""
        extra = self.loaded.config.audit.groups.get(group)
        return [self.loaded.backend_of(group), *(extra.backends if extra else [])]

    def databases_of(self, group: str) -> list[str]:
        """Return the databases that hold fence rows of *group*."""
        own = self.loaded.config.groups[group].database
        extra = self.loaded.config.audit.groups.get(group)
        return [*([own] if own else []), *(extra.databases if extra else [])]

    def source(self, backend: str, log: str, name: str, group: str = "", topic: str = "") -> Source:
        """Return the source of these names, with its number from an earlier run or a new one."""
        for known in self.sources.values():
            if (known.backend, known.log, known.name, known.group) == (backend, log, name, group):
                return known
        made = Source(len(self.sources), backend, log, name, group, topic)
        self.sources[made.number] = made
        return made

    def logs(self, group: str) -> list[Source]:
        """Return the logs of a group, on all its brokers."""
        return [
            self.source(backend, log, group, group) for backend in self.backends_of(group) for log in (OP, HALF, PARKED)
        ]

    def tables(self, group: str) -> list[Source]:
        """Return the fence tables of a group."""
        table = self.loaded.config.groups[group].fence_table
        return [self.source(database, FENCE, table, group) for database in self.databases_of(group)]

    def topics(self, backend: str, listed: list[str]) -> list[Source]:
        """Return the targets to read on a broker: the configured topics, otherwise those that the broker listed."""
        section = self.loaded.config.audit.backends.get(backend)
        taps = dict(tap.split("=", 1) for tap in section.taps) if section else {}
        wanted = (section.topics if section and section.topics else listed) or []
        plain = [self.source(backend, TARGET, topic, topic=topic) for topic in wanted if topic not in taps]
        return plain + [self.source(backend, TARGET, stream, topic=topic) for topic, stream in taps.items()]

    def place(self, source: Source, partition: int) -> Place:
        """Return the place of the records of this source and partition."""
        backend = self.backends.get(source.backend, -1)
        if not source.group:
            return Place(backend, source.number, partition)
        policy = self.loaded.config.groups[source.group].policy
        return Place(
            backend,
            source.number,
            partition,
            self.groups[source.group],
            policy.check_max,
            round(policy.interval_s * 1000),
            round(policy.immunity_s * 1000),
        )


def scope_of(loaded: Loaded, manifest: Mapping[str, Any] | None = None) -> Scope:
    """Return the scope that a configuration describes, with the numbers of an earlier run.

    Raises:
        UsageError: the configuration has no group.
    """
    if not loaded.config.groups:
        raise UsageError("the configuration names no group to audit")
    scope = Scope(loaded)
    if manifest is not None:
        scope.backends.update(manifest["backends"])
        scope.groups.update(manifest["groups"])
        scope.sources.update({each["number"]: Source(**each) for each in manifest["sources"]})
    for group in loaded.config.groups:
        scope.groups.setdefault(group, len(scope.groups))
        for backend in scope.backends_of(group):
            scope.backends.setdefault(backend, len(scope.backends))
    for backend in loaded.config.backends:
        scope.backends.setdefault(backend, len(scope.backends))
    return scope
