"""The options of one audit of an outbox: table, columns, topics, and where a message names its row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from txcore import wire
from txcore.audit.exact_json import exact_bytes, exact_value
from txcore.audit.targets import target_place
from txcore.errors import ConfigError
from txcore.ids import id_text
from txcore.outbox.foreign_layouts import Layout, check_table
from txcore.outbox.foreign_rows import headers_from

HEADER: Final = "header:"
BODY: Final = "body:"
PARTS: Final = ("key", "body", "headers")
"""Parts of a message that are compared with its row."""


@dataclass(frozen=True, slots=True)
class Convention:
    """How a library's own relay writes a row into a topic.

    Attributes:
        identity: Where the message has the row's id: `header:NAME`, or `body:PATH` in a JSON body.
        payload: Path of the row's body within a JSON body; empty if it is the whole body.
        headers: Path of the row's headers within a JSON body; empty if they are the message's own.
        is_deleted_when_sent: A row leaves the table only after its message was sent.
    """

    identity: str
    payload: str = ""
    headers: str = ""
    is_deleted_when_sent: bool = True


CONVENTIONS: Final[Mapping[str, Convention]] = {
    "": Convention(""),
    "debezium": Convention("header:id", is_deleted_when_sent=False),
    "eventuate": Convention("body:headers.ID", "payload", "headers"),
    "masstransit": Convention("header:MessageId"),
}
"""Conventions by the name of the layout. Messages of txcore's relay have the header `txcore-id` instead.

Source: Debezium documentation, "Outbox Event Router"; Eventuate Tram, `Message.ID` and the messages of its CDC service;
MassTransit documentation, "Messages". Debezium reads the database's log, so a service may delete a row at once.
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of one audit of an outbox.

    Attributes:
        broker, database: URLs.
        table: The outbox table.
        layout: Its columns.
        convention: How its relay writes a row into a topic, unless it is txcore's.
        kept: A table of the same columns in which a trigger keeps every row; empty without one.
        created: Column with the time of a row; empty without one.
        since_ms: Rows that are older are not judged; 0 for all.
        grace_s: Seconds that a relay may take to send a row.
        topics: Further topics that are read; those that the rows name are read anyway.
        taps: Streams that are read in place of a RabbitMQ queue, by topic.
        skipped: Parts that are not compared.
        timeout_s: Seconds without a record after which a topic counts as unreadable.

    Raises:
        ConfigError: a value is not of its form.
    """

    broker: str
    database: str
    table: str
    layout: Layout
    convention: Convention = CONVENTIONS[""]
    kept: str = ""
    created: str = ""
    since_ms: int = 0
    grace_s: float = 60.0
    topics: tuple[str, ...] = ()
    taps: Mapping[str, str] = field(default_factory=dict)
    skipped: frozenset[str] = frozenset()
    timeout_s: float = 20.0

    def __post_init__(self) -> None:
        check_table(self.table)
        if self.kept:
            check_table(self.kept, "kept")
        where = self.convention.identity
        if where and not where.startswith((HEADER, BODY)):
            raise ConfigError(f"--match {where!r} must be header:NAME or body:PATH", key="match")
        if self.since_ms and not self.created:
            raise ConfigError("--since needs --created, the column with the time of a row", key="created")
        unknown = sorted(self.skipped - set(PARTS))
        if unknown:
            raise ConfigError(f"--skip is one of {', '.join(PARTS)}, not {unknown[0]!r}", key="skip")

    @property
    def has_all_rows(self) -> bool:
        """Whether a row can be found after its message was sent."""
        return bool(self.kept or self.layout.done)

    def identity_of(self, headers: Mapping[str, str | bytes], body: bytes) -> str:
        """Return the id that a message gives for its row; "" without one."""
        own = text_of(headers.get(wire.HEADER_ID))
        if own:  # a relay sends one message per row
            place = target_place(own)
            return id_text(place[0]) if place is not None and place[1] == 0 else ""
        kind, _, name = self.convention.identity.partition(":")
        if kind == "header":
            return text_of(headers.get(name))
        return str(_within(body, name) or "") if name else ""

    def payload_of(self, headers: Mapping[str, str | bytes], body: bytes) -> bytes:
        """Return the part of a message's body that is the row's."""
        if not self.convention.payload or wire.HEADER_ID in headers:
            return body
        found = _within(body, self.convention.payload)
        if found is None:
            return body
        return found.encode() if isinstance(found, str) else exact_bytes(found)

    def headers_of(self, headers: Mapping[str, str | bytes], body: bytes) -> Mapping[str, str | bytes]:
        """Return the headers of a message that are the row's."""
        if not self.convention.headers or wire.HEADER_ID in headers:
            return headers
        found = _within(body, self.convention.headers)
        return headers_from(exact_bytes(found)) if isinstance(found, dict) else headers


def text_of(value: str | bytes | None) -> str:
    """Return a header as text; bytes that are no text keep their values."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value or ""


def _within(body: bytes, path: str) -> Any:
    """Return the value at a path of names with dots in a JSON body; None without it."""
    try:
        found = exact_value(body)
        exact_bytes(found)
    except ValueError:
        return None
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found
