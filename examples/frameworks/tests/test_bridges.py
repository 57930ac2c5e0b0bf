"""The bridges, on real brokers: killed in the middle, each message starts one workflow, or one call with its key."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from conftest import make_topic, publish, rows
from temporal import TemporalServer
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from txcore_conformance.kit import wait_until
from txcore_conformance.required import obtained

FOLDER = Path(__file__).parents[1]
COUNT = 60
KILLS = 2


@pytest.fixture
def topic():
    return f"orders-{uuid.uuid4()}"


def kill_in_the_middle(url, topic, start, done):
    """Start a bridge, and kill it at some counts of *done*; wait until it has done all, and then one more."""
    bridge = start()
    for number in range(1, KILLS + 1):
        wait_until(lambda least=number * COUNT // (KILLS + 2): done() >= least, "some of it")
        bridge.kill()
        bridge = start()
    wait_until(lambda: done() >= COUNT, "all of it")
    publish(url, topic, 1)  # after all repeated messages
    wait_until(lambda: done() > COUNT, "the last one")


def test_dbos_has_one_workflow_for_each_message(rabbitmq, topic, run, tmp_path):
    """A repeated message starts no workflow; a workflow of a killed bridge is finished by the next one."""
    make_topic(rabbitmq, topic)
    publish(rabbitmq, topic, COUNT)
    environment = {
        "BROKER": rabbitmq.replace("rabbitmq://", "amqp://"),
        "TOPIC": topic,
        "DATABASE": f"sqlite:///{tmp_path}/mails.db",
        "DBOS_DATABASE": f"sqlite:///{tmp_path}/dbos.db",
        "DBOS__VMID": "bridge",
    }

    def start():
        bridge = run("python", str(FOLDER / "dbos_bridge.py"), **environment)
        bridge.wait_for("ready")
        return bridge

    def workflows(status):
        sql = f"SELECT workflow_uuid FROM workflow_status WHERE name LIKE '%mail_order' AND status LIKE '{status}'"
        return rows(tmp_path / "dbos.db", sql)

    kill_in_the_middle(rabbitmq, topic, start, lambda: len(workflows("SUCCESS")))
    assert COUNT + 1 == len(workflows("%"))
    assert list(range(COUNT)) == sorted(rows(tmp_path / "mails.db", "SELECT number FROM mails"))


mails: list[tuple[str, int]] = []


@activity.defn
def write_mail(order: int) -> None:
    """Note the order and its workflow."""
    mails.append((activity.info().workflow_id, order))


@workflow.defn(name="MailOrder")
class MailOrder:
    """The workflow that the bridge starts."""

    @workflow.run
    async def run(self, order: int) -> None:
        await workflow.execute_activity(write_mail, order, start_to_close_timeout=timedelta(minutes=1))


def test_temporal_has_one_workflow_for_each_message(kafka, topic, run):
    """A repeated message finds its id in use."""
    make_topic(kafka, topic)
    publish(kafka, topic, COUNT)
    server = obtained("temporal", TemporalServer)
    environment = {"BROKER": kafka.removeprefix("kafka://"), "TOPIC": topic}

    def start():
        bridge = run("python", str(FOLDER / "temporal_bridge.py"), TEMPORAL=server.address, **environment)
        bridge.wait_for("ready")
        return bridge

    async def serve() -> None:
        client = await Client.connect(server.address)
        with ThreadPoolExecutor() as threads:
            async with Worker(
                client,
                task_queue="shop",
                workflows=[MailOrder],
                activities=[write_mail],
                activity_executor=threads,
                workflow_runner=UnsandboxedWorkflowRunner(),
            ):
                await asyncio.to_thread(kill_in_the_middle, kafka, topic, start, lambda: len(mails))

    try:
        server.start()
        asyncio.run(serve())
    finally:
        server.remove()
    assert [0, *range(COUNT)] == sorted(order for _, order in mails)
    assert COUNT + 1 == len({workflow_id for workflow_id, _ in mails})


class Receiver(BaseHTTPRequestHandler):
    """A service that refuses every third call, and notes the key and the body of the others."""

    calls = 0
    seen: ClassVar[Counter[tuple[str, int]]] = Counter()

    def do_POST(self) -> None:
        Receiver.calls += 1
        body = self.rfile.read(int(self.headers["content-length"]))
        is_refused = Receiver.calls % 3 == 0
        if not is_refused:
            Receiver.seen[self.headers["idempotency-key"], int(body)] += 1
        self.send_response(503 if is_refused else 204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_webhook_is_called_for_each_message_with_one_key(rabbitmq, topic, run):
    """Refused calls are repeated; whatever comes twice has the key of the first time."""
    make_topic(rabbitmq, topic)
    publish(rabbitmq, topic, COUNT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {
        "BROKER": rabbitmq.replace("rabbitmq://", "amqp://"),
        "TOPIC": topic,
        "TARGET": f"http://127.0.0.1:{server.server_port}/orders",
        "PAUSE_S": "0.01",
    }

    def start():
        bridge = run("python", str(FOLDER / "webhook_bridge.py"), **environment)
        bridge.wait_for("ready")
        return bridge

    try:
        kill_in_the_middle(rabbitmq, topic, start, lambda: len(Receiver.seen))
    finally:
        server.shutdown()
        server.server_close()
    keys = [key for key, _ in Receiver.seen]
    assert len(set(keys)) == len(keys)
    assert [0, *range(COUNT)] == sorted(number for _, number in Receiver.seen)
    assert sum(Receiver.seen.values()) >= COUNT + COUNT // 3  # the repeated messages came with their keys
