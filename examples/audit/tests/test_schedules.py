"""The schedules for Airflow and Dagster, each in its own environment, over a group without a server.

`make schedules` runs this file once in each environment, and names the schedule in TXCORE_SCHEDULE.
"""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy

import txcore

FOLDER = Path(__file__).parents[1]
SCHEDULE = os.environ.get("TXCORE_SCHEDULE", "")
CONFIG = """
[backends.main]
url = "sqlite:///broker.db"
[databases.main]
url = "sqlite:///shop.db"
[groups.shop]
database = "main"
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A group with committed messages, and the configuration of its audit; the current folder is its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TXCORE_CONFIG", "txcore.toml")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    Path("txcore.toml").write_text(CONFIG, encoding="utf-8")
    engine = sqlalchemy.create_engine("sqlite:///shop.db")
    fence = txcore.SqlFence(engine)
    fence.create()
    with (
        txcore.connect("sqlite:///broker.db") as backend,
        txcore.TransactionProducer(backend, "shop", fence=fence) as producer,
    ):
        for number in range(5):
            with producer.transaction(engine) as tx:
                tx.publish(txcore.Message("orders.created", b"%d" % number))
    engine.dispose()
    return tmp_path


def loaded():
    """Import the schedule anew."""
    spec = importlib.util.spec_from_file_location(SCHEDULE, FOLDER / f"{SCHEDULE}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCHEDULE] = module
    spec.loader.exec_module(module)
    return module


def ran():
    """Run the schedule once, and return whether it succeeded."""
    if SCHEDULE == "dagster_audit":
        from dagster import materialize

        return materialize([loaded().txcore_audit], raise_on_error=False).success
    environment = os.environ | {
        "AIRFLOW_HOME": str(Path("airflow").absolute()),
        "AIRFLOW__CORE__DAGS_FOLDER": str(FOLDER),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    for words in ("db migrate", "dags reserialize", "dags test txcore_audit"):
        command = [str(Path(sys.executable).with_name("airflow")), *words.split()]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    printed = ended.stdout + ended.stderr
    assert ("successful" in printed) != ("DagRun failed" in printed), printed[-2_000:]
    return "successful" in printed


def test_schedule_succeeds_while_everything_agrees(shop):
    """The audit's run is there, with its report."""
    assert ran()
    assert (shop / "txcore-audit" / "runs" / "000001" / "report.html").exists()


def test_schedule_fails_where_a_message_is_lost(shop):
    """A target that vanished is a violation, and the run fails."""
    with sqlite3.connect("broker.db") as connection:
        connection.execute("DELETE FROM target WHERE position = (SELECT max(position) FROM target)")
    assert not ran()


def test_schedule_fails_where_the_audit_fails(shop):
    """A mistake in the configuration is no success."""
    Path("txcore.toml").write_text("[groups", encoding="utf-8")
    assert not ran()
