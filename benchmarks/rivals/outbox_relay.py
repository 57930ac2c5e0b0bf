"""A hand-written outbox relay, as the pattern is usually shown: PostgreSQL rows to a Kafka topic, in order of id.

`python -m benchmarks.rivals.outbox_relay DATABASE SERVERS TOPIC poll|notify` runs until it is killed.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import psycopg
from confluent_kafka import Producer

CREATE: Final = "CREATE TABLE outbox (id bigserial PRIMARY KEY, body bytea NOT NULL)"
INSERT: Final = "INSERT INTO outbox (body) VALUES (%s)"
NOTIFY: Final = "NOTIFY outbox"
_FETCH: Final = "SELECT id, body FROM outbox ORDER BY id LIMIT 1000 FOR UPDATE SKIP LOCKED"
_DELETE: Final = "DELETE FROM outbox WHERE id = ANY(%s)"
_POLL_S: Final = 0.05


def relay_batch(connection: psycopg.Connection[Any], producer: Producer, topic: str) -> int:
    """Publish and delete one batch in one transaction; returns its size."""
    failed: list[object] = []
    with connection.transaction():
        rows = connection.execute(_FETCH).fetchall()
        for _, body in rows:
            producer.produce(topic, body, on_delivery=lambda error, _: failed.append(error) if error else None)
        if producer.flush(30) or failed:
            raise RuntimeError(f"a batch was not delivered: {failed[:1]}")
        connection.execute(_DELETE, ([number for number, _ in rows],))
    return len(rows)


def relay(database: str, servers: str, topic: str, wake_up: str) -> None:
    """Relay without end: read again at once while there are rows, otherwise after 50 ms or a NOTIFY."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    with psycopg.connect(database, autocommit=True) as connection:
        if wake_up == "notify":
            connection.execute("LISTEN outbox")
        while True:
            if relay_batch(connection, producer, topic):
                continue
            if wake_up == "notify":
                for _ in connection.notifies(timeout=1.0, stop_after=1):
                    pass
            else:
                time.sleep(_POLL_S)


if __name__ == "__main__":
    relay(*sys.argv[1:])
