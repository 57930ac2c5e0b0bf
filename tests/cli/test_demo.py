"""`txcore demo`: it proves its claim, and reports a failed proof."""

from __future__ import annotations

import base64
import contextlib
import re
import sqlite3

import pytest
from txcore_conformance import servers
from txcore_conformance.required import obtained

SPOIL = """
import sqlite3
from txcore_conformance.demo import run

def spoil(settings):
    with sqlite3.connect("kept/broker.db") as broker:
        first, second = [row[0] for row in broker.execute("SELECT position FROM target ORDER BY position LIMIT 2")]
        broker.execute("DELETE FROM target WHERE position = ?", (first,))
        broker.execute("UPDATE target SET body = 'spoiled' WHERE position = ?", (second,))
    with sqlite3.connect("kept/shop.db") as shop:
        shop.execute("DELETE FROM demo_orders WHERE number = 11")

honest = run.run
run.run = lambda settings, watch: honest(settings, watch, before_judgement=spoil)
"""


def number(output: str, name: str) -> int:
    """Return the number beside *name*."""
    found = re.search(rf"{name} +(\d+)", output)
    assert found, output
    return int(found[1])


def test_demo_proves_itself(txcore):
    """Each order has its message although processes were killed; the screen shows it in 80 columns."""
    ran = txcore("demo", "--orders", "120", "--kills", "6", "--seed", "7")
    assert (ran.status, ran.errors) == (0, ""), ran
    assert "PROVEN" in ran.output
    assert number(ran.output, "processes killed") >= 6
    assert number(ran.output, "orders committed") == 114
    assert number(ran.output, "messages delivered") >= 114
    assert [number(ran.output, name) for name in ("in doubt", "lost", "leaked")] == [0, 0, 0]
    assert number(ran.output, "duplicates removed") > 0
    assert ran.width <= 80
    assert list(txcore.folder.glob("txcore-demo-*")) == []


def test_demo_keeps_its_files_on_request_and_the_commands_it_names_work(txcore):
    """The commands that the demo prints find three rows each in the kept files."""
    ran = txcore("demo", "--orders", "30", "--kills", "2", "--dir", "kept")
    assert ran.status == 0, ran
    assert f"cd {txcore.folder / 'kept'}" in ran.output
    commands = re.findall(r'sqlite3 (\S+) "(.*)"', ran.output)
    assert len(commands) == 2
    for file, query in commands:
        with contextlib.closing(sqlite3.connect(txcore.folder / "kept" / file)) as connection:
            assert len(connection.execute(query).fetchall()) == 3


def test_spoiled_run_names_the_invariants(txcore):
    """The demo finds a lost, a changed and a leaked message, and names the invariants."""
    ran = txcore("demo", "--orders", "30", "--kills", "2", "--dir", "kept", before=SPOIL)
    assert ran.status == 1, ran
    assert "PROVEN" not in ran.output
    assert (number(ran.output, "lost"), number(ran.output, "leaked")) == (1, 1)
    broken = re.findall(r"^(\w+) \d+ times? broken", ran.output, re.MULTILINE)
    assert {"S2", "S3", "S4", "S7", "S8"} <= set(broken), ran.output
    assert ran.errors == ""


def test_too_few_kills_prove_nothing(txcore):
    """The demo reports that one order cannot be interrupted often enough."""
    ran = txcore("demo", "--orders", "1", "--kills", "90")
    assert ran.status == 1
    assert "NOT PROVEN" in ran.output
    assert "90 are needed" in ran.output
    assert number(ran.output, "lost") == 0


def test_demo_on_postgresql(txcore):
    """The demo makes its own tables in the user's database, and removes all of them."""
    sqlalchemy = pytest.importorskip("sqlalchemy")
    server = obtained("postgresql", servers.postgresql)
    try:
        ran = txcore("demo", "--orders", "120", "--kills", "6", "--database", server.url)
        assert (ran.status, ran.errors) == (0, ""), ran
        assert number(ran.output, "orders committed") == 114
        engine = sqlalchemy.create_engine(server.url)
        assert sqlalchemy.inspect(engine).get_table_names() == []
        engine.dispose()
    finally:
        server.stop()


def test_demo_signs_where_the_brokers_url_names_keys(txcore):
    """The run's group has a name of its own, and so a key of its own: each of its halves is signed."""
    (txcore.folder / "keys.toml").write_text(
        f'[groups.shop]\nsign_with = "k"\n[groups.shop.keys]\nk = "{base64.b64encode(b"k" * 32).decode()}"\n'
    )
    url = "sqlite:///kept/broker.db?signing_keys=keys.toml&lease_s=1.5"
    ran = txcore("demo", "--orders", "30", "--kills", "2", "--dir", "kept", "--broker", url)
    assert (ran.status, ran.errors) == (0, ""), ran
    assert "PROVEN" in ran.output
    stored = (txcore.folder / "kept" / "broker.db").read_bytes()
    assert stored.count(b"\xa3txs") >= stored.count(b"\xa3txh") >= 30
    (txcore.folder / "keys.toml").write_text("")
    refused = txcore("demo", "--orders", "30", "--dir", "kept", "--broker", url)
    assert (refused.status, "Traceback" in refused.errors) == (2, False)
