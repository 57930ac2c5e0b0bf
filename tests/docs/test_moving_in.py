"""The relay in place of Debezium's connector: the page's command, run on an outbox table of Debezium's form."""

from __future__ import annotations

import re
import shlex
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path

from txcore_sqlite.consumer import read_topic

PAGE = Path(__file__).parents[2] / "docs" / "moving-in.md"
TABLE = """CREATE TABLE outboxevent (id TEXT PRIMARY KEY, aggregatetype TEXT, aggregateid TEXT, type TEXT,
    payload TEXT, created_at INTEGER)"""


def commanded(**local):
    """Return the page's `txcore relay`, with the broker and the database of the test in place of the page's."""
    section = PAGE.read_text(encoding="utf-8").partition("## From Debezium")[2]
    (block,) = re.findall(r"```sh\n(txcore relay .*?)```", section, re.DOTALL)
    words = shlex.split(block.replace("\\\n", " "))
    for name, value in local.items():
        words[words.index(f"--{name}") + 1] = value
    return words[1:]


def run(*words):
    command = [sys.executable, "-m", "txcore.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert 0 == done.returncode, done.stderr


def test_a_relay_beside_debezium_fills_the_shadow_topic_and_then_the_real_one(tmp_path):
    """Both topics have the header `id` of each row, by which the two sides are compared."""
    database, broker = tmp_path / "shop.db", tmp_path / "broker.db"
    ids = [str(uuid.uuid4()) for _ in range(3)]

    def write():
        with closing(sqlite3.connect(database)) as connection, connection:
            for number, identity in enumerate(ids):
                row = (identity, "order", "7", "Created", f"{number}", number)
                connection.execute("INSERT INTO outboxevent VALUES (?, ?, ?, ?, ?, ?)", row)

    with closing(sqlite3.connect(database)) as connection:
        connection.execute(TABLE)
    url = f"sqlite:///{broker}"
    run("topics", "create", "--broker", url, "--target", "shadow.order", "--target", "outbox.event.order")
    words = commanded(broker=url, database=f"sqlite:///{database}")
    write()
    run(*words, "--once")
    assert ids == [message.headers["id"] for message in read_topic(broker, "shadow.order")]
    write()
    run(*(each.replace("topic=shadow.", "topic=outbox.event.") for each in words), "--once")
    sent = [(message.headers["id"], message.body) for message in read_topic(broker, "outbox.event.order")]
    assert [(identity, b"%d" % number) for number, identity in enumerate(ids)] == sent
