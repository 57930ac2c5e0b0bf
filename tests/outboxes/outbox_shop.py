"""Outbox tables of three libraries, and messages on each broker as these libraries' own relays send them."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import create_engine, text
from txcore_spark.anomalies import Written
from txcore_spark.outboxes.asked import CONVENTIONS, Asked
from txcore_spark.outboxes.keeping import keeping_sql
from txcore_spark.selftest.writers import open_writer

import txcore
from txcore.outbox.foreign_layouts import layout_of

GRACE_S = 0.2
TABLES = {
    "debezium": (
        "outboxevent",
        (
            "id VARCHAR(36) PRIMARY KEY, aggregatetype VARCHAR(99), aggregateid VARCHAR(99), type VARCHAR(99),"
            " payload VARCHAR(999), created_at VARCHAR(40)"
        ),
    ),
    "eventuate": (
        "message",
        (
            "id VARCHAR(99) PRIMARY KEY, destination VARCHAR(99), headers VARCHAR(999), payload VARCHAR(999),"
            " published INT, creation_time BIGINT"
        ),
    ),
    "masstransit": (
        "outbox_message",
        (
            "MessageId VARCHAR(36) PRIMARY KEY, DestinationAddress VARCHAR(99), Body VARCHAR(999),"
            " Headers VARCHAR(999), SequenceNumber INT, SentTime VARCHAR(40)"
        ),
    ),
}
CREATED = {"debezium": "created_at", "eventuate": "creation_time", "masstransit": "SentTime"}


@dataclass
class Event:
    """One event: what the row has, and what its message has unless a test changes it."""

    topic: str
    number: int
    name: str = field(default_factory=lambda: str(uuid.uuid4()))

    def __post_init__(self):
        self.body = f"order {self.number}"
        self.key = f"k{self.number % 3}"
        self.kind = "OrderCreated"


@dataclass
class Shop:
    """A service with an outbox of one library, its database and its broker."""

    layout: str
    broker: str
    database: str
    topics: tuple[str, str]

    def __post_init__(self):
        self.table, columns = TABLES[self.layout]
        self.kept = "" if self.layout == "eventuate" else f"{self.table}_kept"
        self.engine = create_engine(self.database)
        self.run(f"CREATE TABLE {self.table} ({columns})")
        if self.kept:
            first, rest = keeping_sql(self.database, self.table, self.kept).split(";\n", 1)
            self.run(first)
            self.run(rest)
        backend = txcore.connect(self.broker)
        backend.ensure_group("shop", 1).result(20)
        backend.close()
        self.writer = open_writer(self.broker, "shop")
        self.writer.prepare(self.topics)

    def close(self):
        """Disconnect."""
        self.writer.close()
        self.engine.dispose()

    def run(self, sql: str, values: Any = None) -> None:
        """Run a statement in a transaction of its own."""
        with self.engine.begin() as connection:
            connection.execute(text(sql), values or {})

    def events(self, count: int, first: int = 0) -> list[Event]:
        """Return new events, whose numbers begin at *first*."""
        return [Event(self.topics[0], number) for number in range(first, first + count)]

    def commit(self, events: list[Event]) -> None:
        """Write the rows of *events*, as the service does."""
        for each in events:
            headers = json.dumps({"ID": each.name, "type": each.kind})
            values = {
                "debezium": (each.name, each.topic, each.key, each.kind, each.body, "2026-11-24T10:00:00+00:00"),
                "eventuate": (each.name, each.topic, headers, each.body, 0, 1_795_000_000_000),
                "masstransit": (each.name, each.topic, each.body, headers, each.number, "2026-11-24T10:00:00"),
            }[self.layout]
            names = {f"v{number}": value for number, value in enumerate(values)}
            self.run(f"INSERT INTO {self.table} VALUES ({', '.join(':' + name for name in names)})", names)

    def settle(self, events: list[Event]) -> None:
        """Mark or delete the rows of *events*, as the library's relay does after it has sent them."""
        name = {"masstransit": "MessageId"}.get(self.layout, "id")
        change = f"UPDATE {self.table} SET published = 1" if not self.kept else f"DELETE FROM {self.table}"
        for each in events:
            self.run(f"{change} WHERE {name} = :id", {"id": each.name})

    def send(self, events: list[Event], *, topic: str = "", **changes: Any) -> None:
        """Send the messages of *events* as the library's own relay does; *changes* alter a part of each."""
        records = []
        for each in events:
            body, key = changes.get("body", each.body), changes.get("key", each.key)
            kind = changes.get("kind", each.kind)
            headers, value = {"id": each.name, "type": kind}, body
            if self.layout == "eventuate":
                headers, key = {}, None
                value = json.dumps({"payload": body, "headers": {"ID": each.name, "type": kind}})
            elif self.layout == "masstransit":
                headers, key = {"MessageId": each.name, "ID": each.name, "type": kind}, None
            key_bytes = key.encode() if key else None
            record = Written("target", value.encode(), topic or each.topic, key_bytes, headers)
            records.append((0, record))
        self.writer.write(records)

    def deliver(self, events: list[Event]) -> None:
        """Commit, send and settle *events*, as on a good day."""
        self.commit(events)
        self.send(events)
        self.settle(events)

    def asked(self, **more: Any) -> Asked:
        """Return what the audit of this shop is asked."""
        topic = "{aggregatetype}" if self.layout == "debezium" else ""
        changes = {"topic": topic, "order": "created_at"} if topic else {}
        taps = {each: each.partition("/")[0] + ".tap" for each in self.topics if "/" in each}
        options = {"kept": self.kept, "taps": taps, "topics": self.topics, "grace_s": GRACE_S, **more}
        return Asked(
            self.broker, self.database, self.table, layout_of(self.layout, changes), CONVENTIONS[self.layout], **options
        )
