"""The framework examples start with one command; an order killed at any step has its message or does not exist."""

from __future__ import annotations

import importlib
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest
from txcore_conformance.crash_plugin import kill_at_every_step
from txcore_conformance.scenario import Scenario
from txcore_sqlite.consumer import read_topic

EXAMPLES = Path(__file__).parents[2] / "examples"


class Example(Scenario):
    """An example whose orders are in one SQLite file; the names of its orders are their numbers."""

    group = "shop"
    topics = ("orders.created",)
    folder = ""
    table = "orders"
    number = "number"
    preload = ("pytest",)
    templates: ClassVar[dict[type, bytes]] = {}

    def setup(self, place):
        """Make the tables as the example does; later runs copy the file."""
        path = Path(place.database.partition("///")[2])
        if type(self) not in self.templates:
            self.make(place)
            self.templates[type(self)] = path.read_bytes()
        path.write_bytes(self.templates[type(self)])

    def committed(self, place):
        with closing(sqlite3.connect(place.database.partition("///")[2])) as connection:
            return [row[0] for row in connection.execute(f"SELECT {self.number} FROM {self.table}")]

    def announced(self, message):
        return int(message.body)

    def imported(self, name):
        folder = str(EXAMPLES / self.folder)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        return importlib.import_module(name)


class SessionOrder(Example):
    """The order of examples/session."""

    folder = "session"
    preload = (*Example.preload, "txcore.integrations.session")

    def shop(self, place):
        return self.imported("orders").open_shop(place.broker, place.database)

    def make(self, place):
        with self.shop(place):
            pass

    def run(self, place):
        with self.shop(place) as shop:
            shop.place_order("tea")


class DjangoOrder(Example):
    """The order of examples/django-shop; its COMMIT is Django's own, so the example names it as a step."""

    folder = "django-shop"
    preload = (*Example.preload, "django.core.management", "django.db.models")
    table, number = "shop_order", "id"

    def ready(self, place):
        os.environ |= {
            "DATABASE": place.database.partition("///")[2],
            "BROKER": place.broker,
            "DJANGO_SETTINGS_MODULE": "shop.settings",
        }
        self.imported("shop")
        import django  # noqa: PLC0415 - only in the child

        django.setup()

    def make(self, place):
        environment = {**os.environ, "DATABASE": place.database.partition("///")[2], "BROKER": place.broker}
        subprocess.run(
            [sys.executable, "manage.py", "migrate", "--verbosity", "0"],
            cwd=EXAMPLES / self.folder,
            env=environment,
            check=True,
        )

    def run(self, place):
        self.ready(place)
        from django.db.backends.base.base import BaseDatabaseWrapper  # noqa: PLC0415 - configured only now

        commit = BaseDatabaseWrapper._commit

        def watched(wrapper):
            place.step("before Django's COMMIT")
            commit(wrapper)
            place.step("after Django's COMMIT")

        BaseDatabaseWrapper._commit = watched
        importlib.import_module("shop.models").place_order("tea")


@pytest.mark.parametrize("scenario", [SessionOrder, DjangoOrder])
def test_an_order_killed_at_any_step_has_its_message_or_is_not_there(scenario):
    """The process is killed before, during and after half, COMMIT, targets and op."""
    verdict = kill_at_every_step(scenario)
    assert [] == verdict.wrong, str(verdict)
    steps = {finding.step for finding in verdict.findings}
    assert {"before half:1", "after half:1", "before release COMMIT:1", "during release COMMIT:1"} <= steps
    assert any("COMMIT" in step and step.startswith("after") for step in steps)


def started(folder, *command, **environment):
    done = subprocess.run(
        [sys.executable, *command],
        cwd=EXAMPLES / folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


def test_the_session_example_starts_with_one_command(tmp_path):
    environment = {"BROKER": f"sqlite:///{tmp_path}/broker.db", "DATABASE": f"sqlite:///{tmp_path}/shop.db"}
    assert "order 1 is placed and announced\n" == started("session", "orders.py", "tea", **environment)
    assert "order 2 is placed and announced\n" == started("session", "orders.py", **environment)


def test_the_fastapi_example_starts_with_one_command(run, python, tmp_path):
    """The service runs with its checker, and continues after a kill."""
    database = f"sqlite+aiosqlite:///{tmp_path}/shop.db"
    environment = {"BROKER": f"sqlite:///{tmp_path}/broker.db", "DATABASE": database, "PORT": "0"}
    for number in (1, 2):
        service = run([python, str(EXAMPLES / "fastapi-service" / "service.py")], tmp_path, **environment)
        assert (201, {"order": number}) == service.post("/orders", {"item": "tea"})
        service.process.kill()
        service.process.wait()
    assert [b"1", b"2"] == [message.body for message in read_topic(tmp_path / "broker.db", "orders.created")]


def test_the_django_example_starts_with_one_command(tmp_path):
    environment = {"BROKER": f"sqlite:///{tmp_path}/broker.db", "DATABASE": f"{tmp_path}/shop.db"}
    printed = started("django-shop", "manage.py", "demo", **environment)
    assert "order 1 is placed and announced\ncommitted 0, rolled back 0, pending 0\n" == printed


def test_the_django_checker_ends_when_it_is_asked_to(tmp_path, wait_until):
    """The checker ends with status 0 after SIGTERM."""
    environment = {"BROKER": f"sqlite:///{tmp_path}/broker.db", "DATABASE": f"{tmp_path}/shop.db"}
    started("django-shop", "manage.py", "migrate", "--verbosity", "0", **environment)
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "txcore_checker"],
            cwd=EXAMPLES / "django-shop",
            env={**os.environ, **environment},
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: "checking group shop" in log.read_text(), "the checker")
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(60), log.read_text()
    finally:
        process.kill()
        process.wait()


def test_the_worker_killed_in_the_middle_applies_each_message_once(tmp_path, publish, wait_until):
    """The worker applies each message once, and ends with status 0 after SIGTERM."""
    broker, database, log = tmp_path / "broker.db", tmp_path / "warehouse.db", tmp_path / "log"
    publish(f"sqlite:///{broker}", "shop", "orders.created", range(200), twice_each=2)
    environment = {**os.environ, "BROKER_FILE": str(broker), "DATABASE": f"sqlite:///{database}"}
    command = [sys.executable, str(EXAMPLES / "worker" / "worker.py")]

    def applied():
        with closing(sqlite3.connect(database, timeout=10)) as connection:
            is_there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'parcels'").fetchone()
            return [int(row[0]) for row in connection.execute("SELECT item FROM parcels")] if is_there else []

    for start, least in enumerate((40, 120, 200), 1):
        with log.open("ab") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            # The previous process may have applied all: only "ready" shows that this one handles SIGTERM.
            wait_until(lambda start=start: log.read_text().count("ready") == start, "the worker")
            wait_until(lambda least=least: len(applied()) >= least, "parcels")
            if least == 200:
                process.send_signal(signal.SIGTERM)
                assert 0 == process.wait(60), log.read_text()
        finally:
            process.kill()
            process.wait()
    assert list(range(200)) == sorted(applied())
