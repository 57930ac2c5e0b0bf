"""The scope of an audit: brokers, groups, databases and topics, each with its number in the rows.

Numbers must mean the same in every run of one store, so they are kept in its manifests, and new ones are only added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any, Final

from txcore.config import Loaded
from txcore.errors import UsageError
from txcore_spark.plan import FENCE, TARGET, Source
from txcore_spark.rows import Place

HASH_KEY_BYTES: Final = 16


@dataclass(slots=True)
class Scope:
    """Names and numbers of one audit.

    Attributes:
        backends, groups: Name to number.
        sources: Every log, topic and fence table, by number.
        named: By group and broker: the topics that the group's halves there name.
        secret: Key of the messages' hashes, hexadecimal: a sum of hashes proves nothing against a forger that has it.
        by_table: Groups that send by the message table, whose rows name no topic any more once they are sent.
    """

    loaded: Loaded
    backends: dict[str, int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    sources: dict[int, Source] = field(default_factory=dict)
    named: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    by_table: set[str] = field(default_factory=set)
    secret: str = field(default_factory=lambda: token_hex(HASH_KEY_BYTES), repr=False)

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
        for known in reversed(self.sources.values()):
            if _names(known) == (backend, log, name, group):
                return known
        return self._added(Source(len(self.sources), backend, log, name, group, topic))

    def made_anew(self, source: Source) -> Source:
        """Return a new source of the same names, because the broker's log is another one than before."""
        return self._added(replace(source, number=len(self.sources), made=source.made + 1))

    def _added(self, source: Source) -> Source:
        self.sources[source.number] = source
        return source

    def is_current(self, number: int) -> bool:
        """Return whether the source of this number was not made anew since."""
        known = self.sources[number]
        return self.source(*_names(known)) == known

    def logs(self, group: str, log: str) -> list[Source]:
        """Return the logs of this kind of a group, on all its brokers."""
        return [self.source(backend, log, group, group) for backend in self.backends_of(group)]

    def tables(self) -> dict[int, list[str]]:
        """Return the fence tables, by the numbers of their sources, with the groups that each one holds."""
        found: dict[int, list[str]] = {}
        for group, section in self.loaded.config.groups.items():
            for database in self.databases_of(group):
                found.setdefault(self.source(database, FENCE, section.fence_table).number, []).append(group)
        return found

    def groups_of(self, number: int) -> list[str]:
        """Return the groups whose transactions have records in a source; of a topic, those whose halves name it."""
        source = self.sources[number]
        if source.log == TARGET:
            return [
                group for group in self.loaded.config.groups if source.topic in self.topics_of(group, source.backend)
            ]
        if source.log == FENCE:
            return self.tables().get(number, [])
        return [source.group] if source.group in self.loaded.config.groups else []

    def fence_only(self) -> list[int]:
        """Return the numbers of the groups in which only the fence decides: nothing else is there to be asked."""
        groups = self.loaded.config.groups.items()
        return [
            self.groups[name] for name, each in groups if each.database and not each.listener and each.callback is None
        ]

    def topics_of(self, group: str, backend: str) -> set[str]:
        """Return the topics that a group's halves name, on any broker, if the group is on this one."""
        backends = self.backends_of(group)
        if backend not in backends:
            return set()
        return {topic for each in backends for topic in self.named.get((group, each), ())}

    def table_groups_of(self, backend: str) -> list[str]:
        """Return the groups on a broker that send by the message table."""
        return [group for group in sorted(self.by_table) if backend in self.backends_of(group)]

    def place(self, source: Source, partition: int) -> Place:
        """Return the place of the records of this source and partition."""
        backend = self.backends.get(source.backend, -1)
        if source.group not in self.groups:
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


def _names(source: Source) -> tuple[str, str, str, str]:
    return source.backend, source.log, source.name, source.group


def scope_of(loaded: Loaded, manifest: Mapping[str, Any] | None = None) -> Scope:
    """Return the scope that a configuration describes, with the numbers of an earlier run.

    Raises:
        UsageError: the configuration has no group.
    """
    if not loaded.config.groups:
        raise UsageError("the configuration names no group to audit")
    scope = Scope(loaded)
    if manifest is not None:
        scope.secret = manifest.get("secret", scope.secret)
        scope.backends.update(manifest["backends"])
        scope.groups.update(manifest["groups"])
        scope.sources.update({each["number"]: Source(**each) for each in manifest["sources"]})
        scope.named.update({(each["group"], each["backend"]): set(each["topics"]) for each in manifest["named"]})
        scope.by_table.update(group for group in manifest["by_table"] if group in loaded.config.groups)
    for group in loaded.config.groups:
        scope.groups.setdefault(group, len(scope.groups))
        for backend in scope.backends_of(group):
            scope.backends.setdefault(backend, len(scope.backends))
    for backend in loaded.config.backends:
        scope.backends.setdefault(backend, len(scope.backends))
    return scope
