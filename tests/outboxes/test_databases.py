"""The columns of outbox tables in the types of each database: UUIDs, JSON, times and bytes."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import create_engine, text
from txcore_conformance import servers
from txcore_conformance.required import obtained
from txcore_spark.anomalies import Written
from txcore_spark.outboxes.asked import CONVENTIONS, Asked
from txcore_spark.outboxes.command import examine
from txcore_spark.outboxes.keeping import keeping_sql
from txcore_spark.selftest.writers import open_writer

import txcore
from txcore.outbox.foreign_layouts import layout_of

COLUMNS = {
    "postgresql": "id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb,"
    " created_at timestamptz DEFAULT now()",
    "mariadb": "id BINARY(16) PRIMARY KEY, aggregatetype VARCHAR(99), aggregateid VARCHAR(99), type VARCHAR(99),"
    " payload JSON, created_at TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6)",
}


@pytest.fixture(params=list(COLUMNS))
def database(request):
    """A new database server of each kind."""
    server = obtained(request.param, getattr(servers, request.param))
    made = create_engine(server.fresh_database())
    yield request.param, made
    made.dispose()
    server.stop()


def test_rows_of_each_type_are_compared(database, tmp_path):
    """A UUID, a JSON value in another form and a kept copy by the printed trigger agree with the messages."""
    kind, engine = database
    url = engine.url.render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE outboxevent ({COLUMNS[kind]})"))
    sql = keeping_sql(url, "outboxevent", "kept_events")
    with engine.begin() as connection:
        for statement in [sql] if kind == "postgresql" else sql.split(";\n"):
            connection.exec_driver_sql(statement)
    broker = f"sqlite:///{tmp_path}/broker.db"
    backend = txcore.connect(broker)
    backend.ensure_group("shop", 1).result(20)
    backend.close()
    writer = open_writer(broker, "shop")
    writer.prepare(["outbox.event.order"])
    ids = [uuid.uuid4() for _ in range(4)]
    for number, each in enumerate(ids):
        own = str(each) if kind == "postgresql" else each.bytes
        values = {"id": own, "payload": f'{{"b": 1,  "a": [{number}, "é"], "eur": 12345678901234567.89}}'}
        with engine.begin() as connection:
            insert = "INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload) VALUES"
            connection.execute(text(f"{insert} (:id, 'order', 'k', 't', :payload)"), values)
            connection.execute(text("DELETE FROM outboxevent WHERE id = :id"), {"id": own})
        body = f'{{"a":[{number + (number == 2)},"\\u00e9"],"b":1,"eur":12345678901234567.890}}'.encode()
        if number != 3:
            header = str(each) if kind == "postgresql" else each.hex
            writer.write([(0, Written("target", body, "outbox.event.order", b"k", {"id": header, "type": "t"}))])
    layout = layout_of("debezium", {"order": "created_at", "copied": "type"})
    options = {"kept": "kept_events", "created": "created_at", "grace_s": 0.1}
    found = examine(Asked(broker, url, "outboxevent", layout, CONVENTIONS["debezium"], **options))
    writer.close()
    names = [uuid.UUID(each.name) for each in found.findings]
    assert [("LOST", ids[3]), ("CORRUPT", ids[2])] == [
        (each.verdict, name) for each, name in zip(found.findings, names, strict=True)
    ]
    assert (4, 3, []) == (found.rows, found.messages, found.gaps)
