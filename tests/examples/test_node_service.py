"""The service in Node.js, which has only the wire format and the HTTP callback: it is tested alive and killed."""

from __future__ import annotations

import json
import subprocess
import urllib.request
import uuid
from pathlib import Path

import pytest
from txcore_conformance.demo.consuming import open_consumer

from txcore.ids import parse_id, partition_of

ROOT = Path(__file__).parents[2]
SECRET = "a shared secret"


class Shop:
    """NATS, a checker, the service, and a consumer of its topic; each test has its own group and topic."""

    def __init__(self, run, python, node, folder, nats_url, tmp_path):
        self._run, self._node, self._folder, self._url = run, node, folder, nats_url
        self.group = f"g{uuid.uuid4().hex[:8]}"
        self._orders = tmp_path / "orders.jsonl"
        self._consumer = open_consumer(nats_url, f"shop{self.group}.created", "test")
        self._found = []
        self.service = None
        self._port = "0"
        (tmp_path / "txcore.toml").write_text(
            f'[backends.main]\nurl = "{nats_url}"\n[groups.{self.group}]\npartitions = 2\nlimits.idle_poll_s = 0.1\n'
            f'limits.retry_max_s = 1\n[groups.{self.group}.callback]\nsecret_env = "CHECK_SECRET"\n'
            f'url = "http://127.0.0.1:%s/check"\n'
        )
        self._config = tmp_path / "txcore.toml"
        self._python = python
        self.checker = None

    def make_group(self):
        command = [self._python, "-m", "txcore.cli", "topics", "create", "--broker", self._url]
        command += ["--group", self.group, "--partitions", "2"]
        subprocess.run(command, check=True, capture_output=True)

    def start_service(self, crash_at=""):
        """Start the service, on the port that it had before."""
        self.service = self._run(
            [self._node, "service.mjs"],
            self._folder,
            NATS_URL=self._url,
            GROUP=self.group,
            TOPIC=self._consumer.topic,
            PORT=self._port,
            ORDERS=str(self._orders),
            CHECK_SECRET=SECRET,
            CRASH_AT=crash_at,
        )
        self._port = self.service.url.rpartition(":")[2]
        return self.service

    def start_checker(self):
        self._config.write_text(self._config.read_text().replace("%s", self._port))
        command = [self._python, "-m", "txcore.cli", "checker", "--config", str(self._config), "--set", "http.port=0"]
        self.checker = self._run(command, self._folder, CHECK_SECRET=SECRET)

    def delivered(self):
        """Return body and headers of the messages so far."""
        self._found += self._consumer.poll(100)
        return [(json.loads(each.body), each.headers) for each in self._found]

    def written(self):
        lines = self._orders.read_text().splitlines() if self._orders.exists() else []
        return {each["id"]: each["state"] for each in map(json.loads, lines)}

    def close(self):
        self._consumer.close()


@pytest.fixture
def shop(run, python, node, service_folder, nats_url, tmp_path):
    shop = Shop(run, python, node, service_folder, nats_url, tmp_path)
    shop.make_group()
    yield shop
    shop.close()


def test_its_records_are_those_of_the_test_vectors(node, service_folder):
    """Its records equal the test vectors byte for byte; its ids ascend, and its partitions equal txcore's."""
    vectors = (ROOT / "docs" / "wire-vectors.json").read_bytes()
    done = subprocess.run([node, "vectors.mjs"], cwd=service_folder, input=vectors, capture_output=True, check=True)
    told = json.loads(done.stdout)
    assert 3 + 4 == told["count"]  # records and digests
    assert 7 == uuid.UUID(told["id"]).version
    assert told["partitions"] == [partition_of(parse_id(told["id"]), count) for count in (1, 4, 7)]


def test_an_order_is_committed_and_announced(shop, wait_until):
    """The order's message has the documented headers, and the service refuses an unsigned check."""
    service = shop.start_service()
    status, shown = service.post("/orders", {"number": 42})
    assert (201, "ACCEPTED") == (status, shown["end"])
    ((body, headers),) = wait_until(shop.delivered, "the message")
    assert {"number": 42} == body
    expected = {
        "txcore-id": f"{shown['transaction']}:0",
        "txcore-group": shop.group,
        "txcore-key": "42",
        "kind": "order",
    }
    assert expected == {name: headers[name] for name in expected}
    assert 401 == service.post("/check", {"transaction_id": shown["transaction"]})[0], "unsigned"
    assert 0 == service.end()


@pytest.mark.parametrize(("crash_at", "is_committed"), [("prepared", False), ("committed", True), ("published", True)])
def test_checker_ends_the_transaction_of_a_killed_service(shop, wait_until, crash_at, is_committed):
    """A committed order is delivered with the same id; an uncommitted one is rolled back."""
    service = shop.start_service(crash_at)
    assert None is service.post("/orders", {"number": 7})
    assert -9 == service.process.wait(20)
    shop.start_service()
    shop.start_checker()
    decided = wait_until(shop.written, "an order or a closed check")
    ((identity, state),) = decided.items()
    assert ("COMMIT" if is_committed else "ROLLBACK") == state
    wait_until(lambda: ends(shop.checker) == {"COMMIT" if is_committed else "ROLLBACK": 1}, "the end")
    if is_committed:
        wait_until(shop.delivered, "the message: the consumer reads on a thread of its own")
    assert ([f"{identity}:0"] if is_committed else []) == [headers["txcore-id"] for _, headers in shop.delivered()]


def ends(checker):
    """Return how many halves the checker has ended, by result."""
    with urllib.request.urlopen(f"{checker.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = {}
    for line in lines:
        if line.startswith("txcore_ends_total{"):
            result = line.partition('result="')[2].partition('"')[0]
            found[result] = int(float(line.split()[-1]))
    return {result: count for result, count in found.items() if count}
