"""The service and the checker of examples/deploy/compose.yaml as processes, with a real Kafka and PostgreSQL."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy
import yaml
from txcore_conformance import brokers, servers
from txcore_conformance.demo.consuming import open_consumer
from txcore_conformance.required import obtained

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
KILLED_AFTER = 5
CALLERS = 8


class Shop:
    """The service and its checker, each with the environment that compose.yaml gives it, and a consumer."""

    def __init__(self, run, python, broker, database, folder):
        self._run, self._python, self._folder = run, python, folder
        self.composed = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
        self._places = {"BROKER_URL": broker.url, "DATABASE_URL": database.url}
        self._broker_url = broker.url
        self._engine = sqlalchemy.create_engine(database.url)
        self._consumer = open_consumer(broker.url, "orders.created", "test")
        self._delivered = []

    def start_service(self):
        """Start what the container of the service runs, on a free port."""
        service = self.composed["services"]["shop"]
        assert set(self._places) == set(service["environment"])
        command = [self._python if each == "python" else each for each in service["entrypoint"]]
        at = command.index("0.0.0.0")
        command[at] = "127.0.0.1"
        return self._run([*command, "--port", "0"], DEPLOY, **self._places)

    def start_checker(self):
        """Start what the container of the checker runs, with its configuration, on a free port of loopback."""
        text = self.composed["configs"]["checker"]["content"]
        (self._folder / "txcore.toml").write_text(text)
        variables = dict.fromkeys(self.composed["services"]["checker"]["environment"], "a token of 20 letters")
        at = {"http.port": "0", "http.host": "127.0.0.1", "backends.main.url": self._broker_url}
        changes = [part for key, value in at.items() for part in ("--set", f"{key}={value}")]
        command = [self._python, "-m", "txcore.cli", "checker", "--config", "txcore.toml", *changes]
        return self._run(command, self._folder, **(variables | {"DATABASE_URL": self._places["DATABASE_URL"]}))

    def ordered(self):
        """Return the numbers of the orders in the database."""
        with self._engine.connect() as connection:
            return set(connection.execute(sqlalchemy.text("SELECT number FROM orders")).scalars())

    def delivered(self):
        """Return the numbers of the orders whose message was consumed so far."""
        self._delivered += [json.loads(each.body)["order"] for each in self._consumer.poll()]
        return set(self._delivered)

    def close(self):
        self._consumer.close()
        self._engine.dispose()


@pytest.fixture
def shop(run, python, tmp_path):
    database = obtained("postgresql", servers.postgresql)
    broker = obtained("kafka", lambda: brokers.kafka(own=True))
    made = Shop(run, python, broker, database, tmp_path)
    yield made
    made.close()
    broker.remove()
    database.remove()


def test_the_composed_checker_finishes_the_orders_of_a_killed_service(shop, wait_until):
    """After the service is killed among concurrent orders, each order in the database has its message, and no other."""
    service = shop.start_service()
    assert service.post("/orders/coffee", b"") == (201, {"order": 1})
    address, answers = service.url, []

    def order(number):
        try:
            with urllib.request.urlopen(f"{address}/orders/tea-{number}", b"", timeout=20) as answer:
                answers.append(answer.status)
        except OSError:
            answers.append(None)
        if len(answers) >= KILLED_AFTER:  # two callers may answer at once
            service.process.kill()

    with ThreadPoolExecutor(CALLERS) as callers:
        list(callers.map(order, range(8 * CALLERS)))
    assert {201, None} == set(answers)
    checker = shop.start_checker()

    def metrics():
        with urllib.request.urlopen(checker.url + "/metrics", timeout=20) as answer:
            return answer.read().decode()

    wait_until(lambda: 'txcore_pending_halves{group="shop"} 0.0' in metrics(), "the last decision")
    wait_until(lambda: shop.ordered() <= shop.delivered(), "a message for each order")
    assert shop.ordered() == shop.delivered()
    assert checker.end() == 0
