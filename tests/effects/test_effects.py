"""Both ends of a group, from business row to inbox row: each difference is found, and untouched data has none."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy import create_engine, text
from txcore_conformance.kit import wait_until
from txcore_spark.effects.command import examine
from txcore_spark.effects.comparing import COLUMNS, Births, Comparison
from txcore_spark.rows import SCHEMA, Kind

import txcore
from txcore.cli import main
from txcore.config import ConfigFileError, load
from txcore.errors import MessageRejectedError
from txcore.ids import first_id_at, id_text
from txcore.outbox.relay import Relay

EACH = 10
BUSINESS = "SELECT transaction_id, count(*) FROM orders GROUP BY transaction_id"


@dataclass
class Shop:
    """A service with its database and broker, and a consumer with a database of its own, in SQLite files."""

    folder: Path

    def __post_init__(self):
        self.broker = f"sqlite:///{self.folder}/broker.db"
        self.engine = create_engine(f"sqlite:///{self.folder}/shop.db")
        self.mail = create_engine(f"sqlite:///{self.folder}/mail.db")
        self.fence = txcore.SqlFence(self.engine)
        self.fence.create()
        self.inbox = txcore.Inbox(self.mail)
        self.inbox.create()
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (number INTEGER, transaction_id VARCHAR(36))"))
        backend = txcore.connect(self.broker)
        self.producer = txcore.TransactionProducer(backend, "shop", fence=self.fence)

    def close(self):
        """Close the producer and the databases."""
        self.producer.close()
        self.engine.dispose()
        self.mail.dispose()

    def order(self, *, is_kept=True, messages=1, **options):
        """Commit an order with its messages, and return the transaction's id."""
        with self.producer.transaction(self.engine) as tx:
            if is_kept:
                self.keep(tx.transaction_id, tx.connection)
            for number in range(messages):
                tx.publish(txcore.Message("orders", f"order {number}".encode(), **options))
        return tx.transaction_id

    def keep(self, transaction_id, connection=None):
        """Insert a business row with this id."""
        row = {"id": None if transaction_id is None else str(transaction_id)}
        sql = text("INSERT INTO orders VALUES (1, :id)")
        if connection is not None:
            connection.execute(sql, row)
            return
        with self.engine.begin() as own:
            own.execute(sql, row)

    def receive(self, transaction_id, index=0, due_ms=0):
        """Receive a message as the consumer does."""
        headers = {"txcore-id": f"{transaction_id}:{index}", "txcore-group": "shop"}
        headers |= {"txcore-due": str(due_ms)} if due_ms else {}
        with self.mail.begin() as connection, self.inbox.receive(connection, headers) as is_first:
            assert is_first

    def config(self, more="", business=BUSINESS, window_s=86_400):
        """Write the configuration and return its path."""
        path = self.folder / "txcore.toml"
        path.write_text(
            f'''
            [audit]
            store = "{self.folder}/audit"
            skew_s = 0
            [backends.main]
            url = "{self.broker}"
            [databases.shop]
            url = "sqlite:///{self.folder}/shop.db"
            [databases.mail]
            url = "sqlite:///{self.folder}/mail.db"
            [groups.shop]
            database = "shop"
            [audit.effects.shop]
            business = """{business}"""
            settle_s = 0
            window_s = {window_s}
            [audit.effects.shop.consumers.mail]
            database = "mail"
            {more}
            ''',
            encoding="utf-8",
        )
        return path

    def audit(self):
        """Run the audit, once the ids so far are all of an earlier millisecond."""
        last = time.time_ns() // 1_000_000
        _until_after(last)
        return _code("audit", "--engine", "duckdb", "--config", str(self.config()))

    def examine(self):
        """Run the audit, and compare both ends with it."""
        self.audit()
        return examine(load(self.config()), "shop")


def _code(*arguments):
    """Run a command and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


@pytest.fixture
def shop(tmp_path):
    """A shop."""
    made = Shop(tmp_path)
    yield made
    made.close()


def ids(found, difference):
    """Return the ids of the findings of one kind."""
    return {each.name for each in found.findings if each.verdict == difference}


def test_effects_pass_when_both_ends_agree(shop):
    """Every order has its message and every message was received."""
    for messages in (1, 2, 3):
        made = shop.order(messages=messages)
        for index in range(messages):
            shop.receive(made, index)
    found = shop.examine()
    assert ([], [], 0) == (found.findings, found.gaps, found.exit_code)
    assert (3, 3, {"mail": 3}) == (found.transactions, found.business, found.received)


def test_effects_find_ten_differences_of_each_kind(shop):
    """Each kind is found one by one, and no other one is named."""
    for _ in range(30):
        shop.receive(shop.order())
    unannounced = {str(uuid.UUID(bytes=bytes(each))) for each in _new_ids(EACH)}
    for each in unannounced:
        shop.keep(each)
    unfounded = {str(shop.order(is_kept=False)) for _ in range(EACH)}
    for each in unfounded:
        shop.receive(each)
    unreceived = {str(shop.order()) for _ in range(EACH)}
    unexplained = {str(uuid.UUID(bytes=bytes(each))) for each in _new_ids(EACH)}
    for each in unexplained:
        shop.receive(each)
    found = shop.examine()
    assert unannounced == ids(found, "UNANNOUNCED")
    assert unfounded == ids(found, "UNFOUNDED")
    assert unreceived == ids(found, "UNRECEIVED")
    assert unexplained == ids(found, "UNEXPLAINED")
    assert (4 * EACH, 2) == (len(found.findings), found.exit_code)


def _new_ids(count):
    now_ms = time.time_ns() // 1_000_000
    return [first_id_at(now_ms)[:8] + uuid.uuid4().bytes[8:] for _ in range(count)]


def test_effects_name_a_message_beyond_those_of_its_transaction(shop):
    """An inbox row with an index that no target has is no message's, although its transaction has ended."""
    made = shop.order()
    shop.receive(made, 0)
    shop.receive(made, 1)
    found = shop.examine()
    assert [("UNEXPLAINED", str(made))] == [(each.verdict, each.name) for each in found.findings]
    assert "message 1" in found.findings[0].what


def test_effects_name_business_rows_without_an_id(shop):
    """A row of a code path that forgot to publish has no id; one with another text is named by it."""
    shop.receive(shop.order())
    shop.keep(None)
    shop.keep("order-17")
    found = shop.examine()
    assert {"-", "order-17"} == ids(found, "UNANNOUNCED")


def test_effects_do_not_judge_a_rolled_back_order(shop):
    """A transaction that was rolled back has neither a row nor a message."""
    with pytest.raises(MessageRejectedError):
        shop.order(key="too large" * 1_000_000)
    shop.receive(shop.order())
    assert [] == shop.examine().findings


def test_an_order_after_the_run_is_found_in_the_fence(shop):
    """A business row that is newer than the run, and within the births by a slow clock, is looked for once more."""
    shop.receive(shop.order())
    shop.audit()
    older = first_id_at(time.time_ns() // 1_000_000 - 60_000)[:8] + uuid.uuid4().bytes[8:]
    with shop.engine.begin() as connection:
        shop.fence.insert(connection, older, "shop")
        shop.keep(uuid.UUID(bytes=older), connection)
    assert set() == ids(examine(load(shop.config()), "shop"), "UNANNOUNCED")


def test_a_message_without_a_time_is_as_old_as_the_run(tmp_path):
    """Some brokers give no time of an append: such a message may be of the run's last moment."""
    born_ms, cut_ms = 1_800_000_000_000, 1_800_000_400_000
    births = Births(first_id_at(0), first_id_at(cut_ms - 300_000))
    values = [[first_id_at(born_ms)], [int(Kind.TARGET)], [0], [0], [0], [0], ["orders"], [None]]
    fields = [SCHEMA.field(name) for name in COLUMNS]
    arrays = [pa.array(value, each.type) for value, each in zip(values, fields, strict=True)]
    with closing(Comparison(tmp_path, births, cut_ms)) as sides:
        sides.add_facts([pa.table(arrays, pa.schema(fields))], 0)
        sides.set_inbox([])
        assert [] == [*sides.unreceived((), cut_ms, bytes(16))]
        assert ["UNRECEIVED"] == [each.verdict for each in sides.unreceived((), cut_ms + 1, bytes(16))]


def test_effects_do_not_judge_what_is_pruned(shop):
    """A business row older than the fence's memory, and a message older than the inbox's, prove nothing."""
    for _ in range(3):
        shop.order()
    shop.keep(id_text(_new_ids(1)[0]))
    shop.audit()
    below = first_id_at(time.time_ns() // 1_000_000)
    with shop.engine.begin() as connection:
        connection.execute(text("UPDATE txcore_tx_meta SET pruned_below = :below"), {"below": bytes(below)})
        connection.execute(text("DELETE FROM txcore_tx"))
    with shop.mail.begin() as connection:
        connection.execute(text("UPDATE txcore_inbox_meta SET pruned_below = :below"), {"below": bytes(below)})
    found = examine(load(shop.config()), "shop")
    assert [] == found.findings
    assert found.notes[0].startswith("1 transaction of business rows, older than what the fence remembers")


def test_a_delayed_message_is_received_under_its_due_time(shop):
    """The inbox has it under the time at which it was due, and it is the message of its transaction all the same."""
    made, due_ms = _deliver_later(shop)
    shop.receive(made, due_ms=due_ms)
    _until_after(due_ms)
    assert [] == shop.examine().findings


def test_a_delayed_message_of_an_earlier_hour_is_no_foreign_one(shop):
    """Its transaction was born before the window, of which alone the records are read at first."""
    made, due_ms = _deliver_later(shop)
    shop.receive(made, due_ms=due_ms)
    older = first_id_at(due_ms - 7_200_000)[:8] + uuid.uuid4().bytes[8:]
    with shop.engine.begin() as connection:
        shop.fence.insert(connection, older, "shop")
    shop.receive(uuid.UUID(bytes=older), due_ms=due_ms)
    _until_after(due_ms)
    shop.audit()
    assert [] == examine(load(shop.config(window_s=60)), "shop").findings


def _deliver_later(shop):
    """Commit and deliver a delayed message; returns its transaction, and when it was due."""
    made = shop.order(delay_s=0.05)
    backend = txcore.connect(shop.broker)
    relay = Relay(backend, "shop", shop.engine)
    try:
        wait_until(lambda: _is_out(shop, relay), "the relay has sent the delayed message")
    finally:
        backend.close()
    with shop.engine.begin() as connection:
        return made, connection.execute(text("SELECT due FROM txcore_tx_later")).scalar()


def _until_after(wall_ms):
    """Wait until the clock shows a later millisecond."""
    wait_until(lambda: time.time_ns() // 1_000_000 > wall_ms, "the clock shows a later millisecond")


def _is_out(shop, relay):
    relay.run_once()
    with shop.engine.begin() as connection:
        return not connection.execute(text("SELECT count(*) FROM txcore_tx_msg")).scalar()


def test_effects_are_inconclusive_when_the_run_is(shop):
    """A run that could not read the group's topics proves no missing message, and the comparison is no pass."""
    shop.receive(shop.order())
    shop.audit()
    manifests = sorted((shop.folder / "audit" / "runs").glob("*/_manifest.json"))
    manifest = json.loads(manifests[-1].read_text(encoding="utf-8"))
    manifest["withheld"] = ["shop"]
    manifests[-1].write_text(json.dumps(manifest), encoding="utf-8")
    found = examine(load(shop.config()), "shop")
    assert 3 == found.exit_code
    assert "could not read all logs" in found.gaps[0]


def test_the_command_prints_findings_and_ends_with_their_code(shop, capsys):
    """For people and for programs."""
    lost = shop.order()
    shop.audit()
    capsys.readouterr()
    assert 1 == _code("audit", "effects", "--config", str(shop.config()))
    shown = capsys.readouterr().out
    assert "shop, run 1: warnings" in shown
    assert str(lost) in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert 1 == _code("audit", "effects", "shop", "--json", "--config", str(shop.config()))
    assert [{"UNRECEIVED": 1}] == [each["counts"] for each in json.loads(capsys.readouterr().out)]


@pytest.mark.parametrize(
    ("business", "sentence"),
    [
        ("SELECT amount, 1 FROM orders", "the business rows cannot be read: no such column: amount"),
        ("SELECT transaction_id FROM orders", "`business` must return two columns"),
    ],
)
def test_a_wrong_query_is_one_sentence(shop, capsys, business, sentence):
    """The database's own words, without a traceback."""
    shop.order()
    shop.audit()
    capsys.readouterr()
    assert 4 == _code("audit", "effects", "--config", str(shop.config(business=business)))
    assert sentence in capsys.readouterr().err


def test_effects_need_a_run(shop, capsys):
    """Without a run there is nothing to compare with."""
    assert 4 == _code("audit", "effects", "--config", str(shop.config()))
    assert "run txcore audit first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("[audit.effects.shop.consumers.sms]\ndatabase = 'sms'", "there is no [databases.sms]"),
        ("[audit.effects.shopp]\nbusiness = 'SELECT 1, 2'", "there is no shopp"),
        ("[groups.other]\n[audit.effects.other]\nsettle_s = 1", "there is nothing to compare"),
    ],
)
def test_configuration_names_what_is_missing(shop, more, sentence):
    """A mistake in the section is found when the file is read."""
    with pytest.raises(ConfigFileError) as raised:
        load(shop.config(more))
    assert sentence in str(raised.value)


def test_the_query_gets_the_ids_of_the_window(shop):
    """`:first` and `:until` leave out what is not compared."""
    shop.receive(shop.order())
    business = BUSINESS.replace("GROUP", "WHERE transaction_id >= :first AND transaction_id < :until GROUP")
    shop.keep(id_text(first_id_at(1_000)))
    shop.audit()
    found = examine(load(shop.config(business=business)), "shop")
    assert ([], 1) == (found.findings, found.business)
