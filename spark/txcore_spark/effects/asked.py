"""The options of one comparison of both ends: a group's business rows, and the inboxes of its consumers."""

from __future__ import annotations

from dataclasses import dataclass

from txcore.config import Loaded
from txcore.errors import UsageError
from txcore_spark.scope import Scope


@dataclass(frozen=True, slots=True)
class Consumer:
    """One consumer of a group's messages.

    Attributes:
        name: Its name in the configuration.
        database: URL of the database with its inbox.
        inbox: Name of the inbox table.
        topics: Topics whose messages it receives; empty for all of the group.
    """

    name: str
    database: str
    inbox: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """The options for one group.

    Attributes:
        group: Its name.
        business: The query of its business rows; empty for none.
        database: URL of the database for that query.
        fences: URL and name of each fence table that holds its rows.
        consumers: Consumers whose inboxes are compared.
        window_s: How far back before the run, in seconds, transactions are compared.
        settle_s: Age, in seconds, from which a transaction must have its rows and a message its inbox row.
        skew_s: How far clocks may be off, in seconds.
    """

    group: str
    business: str
    database: str
    fences: tuple[tuple[str, str], ...]
    consumers: tuple[Consumer, ...]
    window_s: float
    settle_s: float
    skew_s: float


def asked_of(loaded: Loaded, group: str) -> Asked:
    """Return the options of a group.

    Raises:
        UsageError: the configuration has no `[audit.effects.GROUP]`.
    """
    section = loaded.config.audit.effects.get(group)
    if section is None:
        raise UsageError(f"the configuration has no [audit.effects.{group}]")
    own = loaded.config.groups[group]

    def url_of(database: str) -> str:
        return loaded.secret("databases", database or own.database, "url")

    return Asked(
        group,
        section.business,
        url_of(section.database),
        tuple((url_of(name), own.fence_table) for name in Scope(loaded).databases_of(group)),
        tuple(
            Consumer(name, url_of(each.database), each.inbox, tuple(each.topics))
            for name, each in section.consumers.items()
        ),
        section.window_s,
        section.settle_s,
        loaded.config.audit.skew_s,
    )
