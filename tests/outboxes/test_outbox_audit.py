"""An outbox that txcore did not make, audited from outside: each kind of difference is found, and nothing else."""

from __future__ import annotations

import json
import sys
import uuid
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest
import txcore_kafka.options
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from outbox_shop import CREATED, TABLES
from sqlalchemy import inspect
from txcore_conformance.kit import wait_until
from txcore_spark.anomalies import Written
from txcore_spark.outboxes.command import examine
from txcore_spark.outboxes.comparing import Comparison
from txcore_spark.outboxes.messages import SCHEMA, Topics

import txcore
from txcore.cli import main
from txcore.errors import BackendUnavailableError, ConfigError, UsageError
from txcore.outbox.foreign_layouts import layout_of
from txcore.outbox.relay import Relay

EACH = 10
LAYOUTS = list(TABLES)


def names(found, verdict):
    """Return the ids of the findings of one verdict."""
    return {each.name for each in found.findings if each.verdict == verdict}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_audit_passes_an_outbox_without_a_difference(make_shop, layout):
    """Rows that were sent, and nothing else, are a pass."""
    shop = make_shop(layout)
    shop.deliver(shop.events(30))
    found = examine(shop.asked())
    assert (0, 30, 30, [], []) == (found.exit_code, found.rows, found.messages, found.findings, found.gaps)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_audit_finds_ten_anomalies_of_each_kind(make_shop, layout):
    """Lost, waiting, doubled, altered, moved and forged messages are found one by one, and no other one is named."""
    shop = make_shop(layout)
    shop.deliver(shop.events(30))
    kinds = ["lost", "doubled", "body", "headers", "moved", "waiting", "key"]
    made = {kind: shop.events(EACH, 100 * number) for number, kind in enumerate(kinds, start=1)}
    for kind, events in made.items():
        shop.commit(events)
        if kind not in {"lost", "waiting", "body", "headers", "moved", "key"}:
            shop.send(events)
    shop.send(made["doubled"])
    shop.send(made["body"], body="another order")
    shop.send(made["headers"], kind="OrderCancelled")
    shop.send(made["moved"], topic=shop.topics[1])
    shop.send(made["key"], key="another key")
    for kind, events in made.items():
        if kind != "waiting":
            shop.settle(events)
    forged = shop.events(EACH, 900)
    shop.send(forged)
    shop.deliver(shop.events(5, 1_000))

    found = examine(shop.asked())
    ids = {kind: {each.name for each in events} for kind, events in made.items()}
    has_keys = layout == "debezium" and not shop.broker.startswith(("rabbitmq", "nats"))
    corrupt = ids["body"] | ids["headers"] | ids["moved"] | (ids["key"] if has_keys else set())
    assert ids["lost"] == names(found, "LOST")
    assert ids["waiting"] == names(found, "STUCK")
    assert ids["doubled"] == names(found, "DUP_TARGET")
    assert corrupt == names(found, "CORRUPT")
    assert {each.name for each in forged} == names(found, "PHANTOM")
    assert (2, []) == (found.exit_code, found.gaps)
    said = {each.name: each.what for each in found.findings}
    assert all("body" in said[each] for each in ids["body"])
    assert all("headers" in said[each] for each in ids["headers"])
    assert all(shop.topics[1] in said[each] for each in ids["moved"])


def test_audit_is_inconclusive_where_sent_rows_are_gone(make_shop):
    """Without a source that keeps rows, no proof exists of what should be in the topic, so it is never a pass."""
    shop = make_shop("masstransit")
    shop.deliver(shop.events(3))
    found = examine(shop.asked(kept=""))
    assert (3, []) == (found.exit_code, found.findings)
    assert "--kept" in found.gaps[0]


def test_audit_tells_that_the_kept_source_lacks_rows(make_shop):
    """A trigger that was off for a while is no proof."""
    shop = make_shop("debezium")
    shop.deliver(shop.events(3))
    more = shop.events(2, 10)
    shop.commit(more)
    shop.send(more)
    shop.run(f"DELETE FROM {shop.kept} WHERE id = :id", {"id": more[0].name})
    found = examine(shop.asked())
    assert (3, ["outboxevent_kept lacks 1 row of outboxevent, so it does not keep all"]) == (
        found.exit_code,
        found.gaps,
    )


def test_audit_waits_for_a_message_that_the_relay_still_sends(make_shop):
    """A row that is not marked as sent may be sent until the grace is over."""
    shop = make_shop("eventuate")
    shop.deliver(shop.events(3))
    late = shop.events(2, 10)
    shop.commit(late)
    found = examine(shop.asked(grace_s=60.0), sleep=lambda _: shop.send(late))
    assert (0, 5) == (found.exit_code, found.messages)


def test_audit_knows_a_row_that_was_written_while_it_read(make_shop):
    """A message whose row is newer than the reading of the table is no forgery."""
    shop = make_shop("eventuate")
    shop.deliver(shop.events(3))
    waiting = shop.events(1, 10)
    shop.commit(waiting)

    def later(_: float) -> None:
        shop.deliver(shop.events(4, 20))
        shop.send(waiting)

    found = examine(shop.asked(grace_s=60.0), sleep=later)
    assert (0, [], 8) == (found.exit_code, found.findings, found.messages)


def test_audit_says_that_a_topic_cannot_be_read(make_shop):
    """A topic that is not there is a gap, and its rows are not called lost."""
    shop = make_shop("debezium")
    event = shop.events(1)[0]
    event.topic = shop.topics[0].replace("orders", "missing")
    shop.commit([event])
    shop.settle([event])
    found = examine(shop.asked())
    if shop.broker.startswith("sqlite"):  # where a topic begins with its first message
        assert 2 == found.exit_code
        return
    assert (3, []) == (found.exit_code, found.findings)
    assert event.topic in found.gaps[0]


def test_audit_compares_what_txcore_s_relay_has_sent(make_shop):
    """The relay for outbox tables gives each message the row's id, on each broker."""
    shop = make_shop("masstransit")
    events = shop.events(20)
    shop.commit(events)
    backend = txcore.connect(shop.broker)
    relay = Relay(backend, "shop", shop.engine, table=shop.table, layout=layout_of("masstransit", {}))
    relay.run_once()
    backend.close()
    lost = shop.events(1, 50)
    shop.commit(lost)
    shop.settle(lost)
    found = examine(shop.asked())
    assert ({lost[0].name}, 1, 20) == (names(found, "LOST"), len(found.findings), found.messages)


def test_since_leaves_older_rows_out(make_shop):
    """Rows before the wanted time are not judged."""
    shop = make_shop("debezium")
    old = shop.events(2)
    shop.commit(old)
    shop.settle(old)
    found = examine(shop.asked(created=CREATED["debezium"], since_ms=1_795_600_000_000))
    assert (0, 0) == (found.exit_code, found.rows)


def test_row_whose_time_is_none_is_one_sentence(make_shop):
    """A column that holds no times is named as a mistake, by its value."""
    shop = make_shop("debezium")
    shop.deliver(shop.events(1))
    with pytest.raises(UsageError, match="'OrderCreated' is not a time such as"):
        examine(shop.asked(created="type"))


def test_topic_whose_beginning_is_gone_is_a_gap(make_shop):
    """What retention removed proves nothing, unless newer rows alone are asked for."""
    shop = make_shop("eventuate")
    if not shop.broker.startswith("kafka"):
        pytest.skip("records are removed from Kafka's topics only")
    shop.deliver(shop.events(6))
    admin = AdminClient(txcore_kafka.options.parse_url(shop.broker).connection())
    for number in range(2):
        cut = TopicPartition(shop.topics[0], number, -1)
        admin.delete_records([cut])[cut].result(20)
    shop.deliver(shop.events(6, 10))
    wait_until(lambda: examine(shop.asked()).messages == 6, "the cut", 30)
    found = examine(shop.asked())
    assert (3, []) == (found.exit_code, found.findings)
    assert "beginning" in found.gaps[0]


def test_header_that_is_there_twice_is_not_the_row_s(make_shop):
    """Some consumers read the first header of a name, and some the last one."""
    shop = make_shop("debezium")
    if not shop.broker.startswith("kafka"):
        pytest.skip("only Kafka carries a header twice")
    shop.deliver(shop.events(2))
    event = shop.events(1, 10)[0]
    shop.commit([event])
    shop.settle([event])
    producer = Producer(txcore_kafka.options.parse_url(shop.broker).connection())
    headers = [("id", event.name), ("type", "OrderCancelled"), ("type", event.kind)]
    producer.produce(event.topic, event.body, key=event.key, headers=headers)
    assert 0 == producer.flush(30)
    found = examine(shop.asked())
    assert ({event.name}, {"CORRUPT": 1}) == (names(found, "CORRUPT"), found.counts)


def test_wrong_options_are_one_sentence(make_shop):
    """A mistake names its option."""
    shop = make_shop("debezium")
    asked = shop.asked()
    for change, words in (
        ({"table": "outbox; --"}, "plain name of a table"),
        ({"kept": "a b"}, "kept='a b'"),
        ({"since_ms": 1}, "--created"),
        ({"skipped": frozenset({"time"})}, "--skip"),
        ({"convention": replace(asked.convention, identity="id")}, "--match"),
    ):
        with pytest.raises(ConfigError, match=words):
            replace(asked, **change)
    with pytest.raises(BackendUnavailableError, match="cannot be read"):
        examine(replace(asked, table="nowhere"))


def test_command_prints_findings_and_ends_with_the_code(make_shop, capsys):
    """`txcore audit outbox` prints a table for people, and one object for programs."""
    shop = make_shop("eventuate")
    shop.deliver(shop.events(3))
    lost = shop.events(1, 10)
    shop.commit(lost)
    shop.settle(lost)
    taps = [
        word for topic in shop.topics if "/" in topic for word in ("--tap", f"{topic}={topic.partition('/')[0]}.tap")
    ]
    words = ["audit", "outbox", "--broker", shop.broker, "--database", shop.database, "--table", shop.table]
    words += ["--layout", "eventuate", "--grace-s", "0", *taps]
    for more in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        assert 2 == ended.value.code
        printed = capsys.readouterr().out
        assert lost[0].name in printed
        if more:
            assert {"LOST": 1} == json.loads(printed)["counts"]
        else:
            assert "violations (4 rows, 3 messages)" in printed


def test_command_prints_the_trigger_as_it_is_to_be_run(make_shop, capsys):
    """`--keep-sql` prints statements of any width on one line each, and changes nothing."""
    shop = make_shop("eventuate")
    with pytest.raises(SystemExit) as ended:
        main(["audit", "outbox", "--broker", "", "--database", shop.database, "--table", "message", "--keep-sql"])
    assert 0 == ended.value.code
    columns = "id, destination, headers, payload, published, creation_time"
    assert f"INSERT INTO message_kept ({columns}) VALUES (NEW.id, NEW.destination" in capsys.readouterr().out
    with shop.engine.connect() as connection:
        assert ["message"] == inspect(connection).get_table_names()


def test_command_without_the_extra_names_it(make_shop, capsys, monkeypatch):
    """DuckDB missing is one sentence with the command that installs it."""
    importing = ("txcore_spark.outboxes", "txcore_spark.engines.sides", "duckdb")
    for name in [name for name in sys.modules if name.startswith(importing)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "audit",
                "outbox",
                "--broker",
                "sqlite:///b.db",
                "--database",
                "sqlite:///d.db",
                "--table",
                "t",
                "--layout",
                "debezium",
            ]
        )
    assert 4 == ended.value.code
    assert 'pip install "txcore[audit]"' in capsys.readouterr().err


def test_id_that_is_no_uuid_is_matched(make_shop):
    """An id of any form is matched as it is."""
    shop = make_shop("eventuate")
    events = shop.events(2)
    for number, each in enumerate(events):
        each.name = f"0000-{number}-{uuid.uuid4().hex[:4]}"
    shop.deliver(events)
    assert (0, 2) == (examine(shop.asked()).exit_code, examine(shop.asked()).rows)


@pytest.mark.parametrize(
    ("committed", "sent"),
    [
        ('{"eur": 12345678901234567.89}', '{"eur": 12345678901234567.91}'),
        ('{"eur": 1}', '{"eur": 999, "eur": 1}'),
        ('{"eur": 1}', '{"eur": "1"}'),
    ],
)
def test_json_of_another_value_is_not_the_row_s(make_shop, committed, sent):
    """A number that a float would round is compared whole, and a name that is there twice is no name."""
    shop = make_shop("debezium")
    events = shop.events(2)
    events[0].body = committed
    shop.commit(events)
    shop.send(events[:1], body=sent)
    shop.send(events[1:])
    shop.settle(events)
    assert {events[0].name} == names(examine(shop.asked()), "CORRUPT")


@pytest.mark.parametrize("value", ['{"a": 1.10, "b": [1e2]}', '{ "b":[100.0],"a":1.1 }'])
def test_json_of_the_same_value_is_the_row_s(make_shop, value):
    """Spaces, the order of names and zeros at a number's end are the database's choice."""
    shop = make_shop("debezium")
    events = shop.events(1)
    events[0].body = '{"a":1.1,"b":[100.0]}'
    shop.commit(events)
    shop.send(events, body=value)
    shop.settle(events)
    assert 0 == examine(shop.asked()).exit_code


@pytest.mark.parametrize("layout", ["debezium", "eventuate"])
@pytest.mark.parametrize(
    "body", [b'{"a": "\xff"}', b"[" * 100_000, b'{"a": "\\ud800"}', b'{"a": 1e99999999999999999999}']
)
def test_message_of_any_bytes_is_read(make_shop, layout, body):
    """Bytes that only look like JSON are no JSON; they end the audit with no exception."""
    shop = make_shop(layout)
    event = shop.events(1)[0]
    shop.deliver([event])
    shop.writer.write([(0, Written("target", body, event.topic, None, {"id": event.name, "type": event.kind}))])
    found = examine(shop.asked())
    assert ({} if layout == "eventuate" else {"CORRUPT": 1, "DUP_TARGET": 1}) == found.counts
    assert (1 if layout == "eventuate" else 0) == found.strange


def test_grace_is_whole_when_the_topics_take_long_to_read(make_shop, monkeypatch):
    """A message that came within the grace is seen, although the first reading lasted longer."""
    shop = make_shop("eventuate")
    shop.deliver(shop.events(3))
    late = shop.events(1, 10)
    shop.commit(late)
    read, clock = Topics.read, iter([0.0, *[100.0] * 9])

    def slow(self, topics):
        yield from read(self, topics)
        if late:
            shop.send([late.pop()])

    monkeypatch.setattr(Topics, "read", slow)
    monkeypatch.setitem(examine.__globals__, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert (0, 4) == ((found := examine(shop.asked(grace_s=60.0))).exit_code, found.messages)


def test_messages_of_a_partition_without_any_row_are_no_pass(make_shop):
    """Nothing dates them, so they may be forged or older than all rows; here every row is gone."""
    shop = make_shop("debezium")
    shop.send(shop.events(3))
    found = examine(shop.asked())
    assert (3, []) == (found.exit_code, found.findings)
    assert "3 messages without a row" in found.gaps[0]
    shop.commit(shop.events(1, 50))
    found = examine(shop.asked(created=CREATED["debezium"]))
    assert 2 == found.exit_code


def test_rows_that_share_an_id_are_a_gap(make_shop):
    """One message does not count for two rows, as with a column of orders instead of one of events."""
    shop = make_shop("debezium")
    shop.deliver(shop.events(4))
    asked = shop.asked()
    columns = replace(asked.layout, id="aggregateid", copied="type")
    match = replace(asked.convention, identity="header:key-of-order")
    found = examine(replace(asked, layout=columns, convention=match))
    assert "1 id of several rows" in " ".join(found.gaps)
    assert found.exit_code in {2, 3}


def test_key_of_the_copy_counts_although_it_is_null(make_shop):
    """A key that was added to row and message is not that of the copy."""
    shop = make_shop("debezium")
    event = shop.events(1)[0]
    event.key = None
    shop.commit([event])
    shop.run(f"UPDATE {shop.table} SET aggregateid = 'evil'")
    shop.send([event], key="evil")
    found = examine(shop.asked())
    assert ({} if shop.broker.startswith(("rabbitmq", "nats")) else {"CORRUPT": 1}) == found.counts


@pytest.mark.parametrize(
    "change", [str.upper, lambda text: text.replace("-", ""), lambda text: text.replace(":0", ":1")]
)
def test_id_of_the_relay_in_another_form_is_not_the_row_s(make_shop, change):
    """A consumer compares its text: a message with another one is applied once more."""
    shop = make_shop("masstransit")
    event = shop.events(1)[0]
    shop.commit([event])
    headers = {"txcore-id": change(f"{uuid.UUID(event.name)}:0"), "ID": event.name, "type": event.kind}
    shop.writer.write([(0, Written("target", event.body.encode(), event.topic, None, headers))])
    shop.settle([event])
    found = examine(shop.asked())
    assert (1, {"LOST": 1}) == (found.strange, found.counts)


def test_row_without_a_time_is_a_gap(make_shop):
    """It is neither newer nor older than the time from which rows are judged."""
    shop = make_shop("debezium")
    events = shop.events(2)
    shop.commit(events)
    shop.run(f"UPDATE {shop.kept} SET created_at = NULL")
    shop.settle(events)
    found = examine(shop.asked(created=CREATED["debezium"], since_ms=1))
    assert (3, ["2 rows without a time in the column 'created_at'"]) == (found.exit_code, found.gaps)


def test_partition_that_was_emptied_proves_no_loss(tmp_path, make_shop):
    """Its messages may be newer than the first one that is left in another partition."""
    asked = make_shop("debezium").asked(grace_s=0.0)
    with closing(Comparison(asked, tmp_path)) as sides:
        first = [(b"i" * 16, "i", "t", 0, 7, 1_000, None, 0, [])]
        columns = zip(*first, strict=True)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
        sides.add("message", [pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)])
        assert {"t": 1_000} == sides.whole_from({"t": {0}})
        assert {} == sides.whole_from({"t": {0, 1}})


def test_row_without_a_body_has_an_empty_message(make_shop):
    """NULL is no text."""
    shop = make_shop("debezium")
    event = shop.events(1)[0]
    event.body = None
    shop.commit([event])
    shop.send([event], body="")
    shop.settle([event])
    assert 0 == examine(shop.asked()).exit_code
