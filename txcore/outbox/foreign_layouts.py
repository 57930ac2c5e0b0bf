"""The columns of outbox tables that other libraries have made, so that a relay can send their rows.

A value names a column. For `topic`, a text with columns in braces also works, as in `outbox.event.{aggregatetype}`.

Source: Debezium documentation, "Outbox Event Router" (columns, topic, `id` header); Eventuate Tram, table `message`;
MassTransit documentation, "Transactional Outbox" (table OutboxMessage).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from txcore.errors import ConfigError

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_TABLE: Final = re.compile(rf"{_NAME.pattern}(\.{_NAME.pattern})?")
_PLACE: Final = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of an outbox table.

    Attributes:
        id: Identity of the message; a UUID is its `txcore-id`, from any other value a UUID is made.
        body, key: The payload and the message key; without a column, no key.
        headers: A JSON object of texts.
        copied: Columns that become headers of their own name, with commas between them.
        order: Columns that order the rows, with commas between them.
        done: Empty to delete sent rows, or the column that is set to 1 (0 or NULL before).

    Raises:
        ConfigError: a value is not a plain column name.
    """

    id: str
    topic: str
    body: str
    order: str
    key: str = ""
    headers: str = ""
    copied: str = ""
    done: str = ""

    def __post_init__(self) -> None:
        for each in fields(self):
            for name in self.names(each.name):
                if not _NAME.fullmatch(name):
                    raise ConfigError(
                        f"{each.name}={getattr(self, each.name)!r}: {name!r} is not a column name", key=each.name
                    )

    def names(self, field: str) -> list[str]:
        """Return the columns that the value of *field* names."""
        value: str = getattr(self, field)
        if field == "topic":
            return _PLACE.findall(value) if "{" in value else [value]
        return [name.strip() for name in value.split(",") if name.strip()]

    @property
    def columns(self) -> list[str]:
        """Every column that is read, once."""
        wanted = [name for field in ("id", "topic", "body", "key", "headers", "copied") for name in self.names(field)]
        return list(dict.fromkeys(wanted))

    def topic_of(self, row: Mapping[str, object]) -> str:
        """Return the topic of a row; "" where a column of it is NULL or empty, which names none."""
        parts = {name: "" if row[name] is None else str(row[name]) for name in self.names("topic")}
        if not all(parts.values()):
            return ""
        return parts[self.topic] if "{" not in self.topic else _PLACE.sub(lambda found: parts[found[1]], self.topic)


LAYOUTS: Final[Mapping[str, Layout]] = {
    "debezium": Layout(
        id="id",
        topic="outbox.event.{aggregatetype}",
        body="payload",
        order="id",
        key="aggregateid",
        copied="id,type",
    ),
    "eventuate": Layout(
        id="id", topic="destination", body="payload", order="creation_time,id", headers="headers", done="published"
    ),
    "masstransit": Layout(
        id="MessageId", topic="DestinationAddress", body="Body", order="SequenceNumber", headers="Headers"
    ),
}
"""Layouts by name. Debezium's table has no column for the order; name yours, such as `order=created_at`."""


def check_table(name: str, key: str = "table") -> None:
    """Raise ConfigError unless *name* is a table's plain name, with or without its schema."""
    if not _TABLE.fullmatch(name):
        raise ConfigError(f"{key}={name!r} is not the plain name of a table", key=key)


def layout_of(name: str, changes: Mapping[str, str]) -> Layout:
    """Return the layout *name* with some columns changed; without a name, one made of *changes* alone.

    Raises:
        ConfigError: unknown layout or key, or a key is missing.
    """
    known = {each.name for each in fields(Layout)}
    unknown = sorted(set(changes) - known)
    if unknown:
        raise ConfigError(f"a layout has no key {unknown[0]!r}, only {', '.join(sorted(known))}", key=unknown[0])
    if not name:
        missing = [key for key in ("id", "topic", "body", "order") if not changes.get(key)]
        if missing:
            raise ConfigError(f"name the column of {missing[0]!r}, or a layout: {', '.join(LAYOUTS)}", key=missing[0])
        return Layout(**changes)
    if name not in LAYOUTS:
        raise ConfigError(f"layout is one of {', '.join(LAYOUTS)}, not {name!r}", key="layout")
    return replace(LAYOUTS[name], **changes)
