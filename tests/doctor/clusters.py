"""Show `txcore doctor` on a default single node and on a durable cluster of three, for each broker, on loopback.

`python tests/doctor/clusters.py [--write] [kafka] [rabbitmq] [nats]`. With `--write` the output goes into
docs/doctor.md. The exit status is 0 if each single node has a failure and each cluster has none, else 1. The
clusters have no users, so that two of their lines are warnings.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pika
from confluent_kafka.admin import AdminClient, NewTopic
from nats.aio.client import Client
from txcore_conformance import brokers

import txcore

DOCUMENT = Path(__file__).parents[2] / "docs" / "doctor.md"
MARKS = ("<!-- examples: begin -->\n", "<!-- examples: end -->\n")
GROUP = "orders"
TARGET = "mail"
SETTLED_WITHIN_S = 40
#: Settings of a durable cluster beyond the harness's own ones, and the URL's options on it.
CLUSTER_SETTINGS = {"rabbitmq": {"disk_free_limit.absolute": "2GB"}}
MONITOR_PORTS = {"rabbitmq": 15672, "nats": 8222}
CLUSTER_OPTIONS = {"nats": "?replicas=3"}


@dataclass(frozen=True)
class Shown:
    """One run of the doctor: the command line and its output."""

    title: str
    command: str
    output: str
    status: int


def main(arguments: list[str]) -> int:
    """Run the doctor on the brokers, as a single node and as a cluster, and return the exit status."""
    names = [name for name in arguments if name in brokers.NAMES] or list(brokers.NAMES)
    shown = []
    for name in names:
        for is_cluster in (False, True):
            shown.append(show(name, is_cluster=is_cluster))
            print(text_of(shown[-1]), flush=True)  # noqa: T201 - a command speaks
    if "--write" in arguments:
        write(shown)
    expected = [1, 3] * len(names)
    return 0 if expected == [each.status for each in shown] else 1


def show(name: str, *, is_cluster: bool) -> Shown:
    """Start the broker, make a group and a target on it, and run the doctor."""
    if is_cluster:
        place = brokers.cluster(name, **CLUSTER_SETTINGS.get(name, {}))
        monitor_url, node_url = place.nodes[0].monitor_url, place.nodes[0].url
    else:
        place = brokers.start(name, own=True)
        monitor_url, node_url = place.monitor_url, place.url
    try:
        url = place.url + (CLUSTER_OPTIONS.get(name, "") if is_cluster else "")
        backend = txcore.connect(url)
        backend.ensure_group(GROUP).result(60)
        backend.close().result(10)
        MAKE_TARGET[name](node_url, 3 if is_cluster else 1)
        arguments = [url, "--group", GROUP, "--target", TARGET, *(["--monitor", monitor_url] if monitor_url else [])]
        await_settled(arguments)
        ran = doctor(*arguments)
        kind = "durable cluster of three" if is_cluster else "default single node"
        return Shown(f"{name} {place.version}, {kind}", command_of(arguments), ran.stdout, ran.returncode)
    finally:
        place.remove()


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `txcore doctor`, 80 columns wide."""
    environment = {**os.environ, "COLUMNS": "80"}
    program = [sys.executable, "-m", "txcore.cli", "doctor", *arguments]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False)


def await_settled(arguments: list[str]) -> None:
    """Wait until two runs in a row agree and are complete: replicas and the management's view are a little late."""
    pause, deadline_s, last = threading.Event(), time.monotonic() + SETTLED_WITHIN_S, None
    while time.monotonic() < deadline_s:
        ran = doctor(*arguments, "--json")
        assert ran.stdout, ran.stderr
        report = json.loads(ran.stdout)
        levels = [(line["check"], line["level"]) for line in report["checks"]]
        if levels == last and not any("not known" in line["text"] for line in report["checks"]):
            return
        last = levels
        pause.wait(3)


def command_of(arguments: list[str]) -> str:
    """Return the text of a user's command, with the brokers' usual ports."""
    words = " ".join(arguments)
    hosts = iter(("one", "two", "three") * 2)
    if "," in arguments[0]:
        words = re.sub(r"127\.0\.0\.1(?=:\d+)", lambda _: next(hosts), words)
    words = re.sub(r"(?<=--monitor )(\S+):\d+$", rf"\1:{MONITOR_PORTS.get(arguments[0].partition(':')[0], '')}", words)
    return "txcore doctor " + re.sub(r"(?<=[\w.]):\d{4,5}(?=[,/? ])", "", words)


def text_of(shown: Shown) -> str:
    """Return one run as Markdown."""
    return f"### {shown.title}\n\n```console\n$ {shown.command}\n{shown.output}```\n\nExit code {shown.status}.\n"


def write(shown: list[Shown]) -> None:
    """Replace the examples in the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    head, _, rest = text.partition(MARKS[0])
    _, _, tail = rest.partition(MARKS[1])
    examples = "\n".join(text_of(each) for each in shown)
    DOCUMENT.write_text(f"{head}{MARKS[0]}\n{examples}\n{MARKS[1]}{tail}", encoding="utf-8")


def make_kafka_target(url: str, replicas: int) -> None:
    """Make the target as a topic."""
    admin = AdminClient({"bootstrap.servers": url.partition("://")[2]})
    admin.create_topics([NewTopic(TARGET, num_partitions=4, replication_factor=replicas)])[TARGET].result(30)


def make_rabbitmq_target(url: str, _replicas: int) -> None:
    """Make the target as a quorum queue, which has a replica on each of up to five nodes."""
    connection = pika.BlockingConnection(pika.URLParameters(url.replace("rabbitmq://", "amqp://").rstrip("/") + "/%2F"))
    connection.channel().queue_declare(TARGET, durable=True, arguments={"x-queue-type": "quorum"})
    connection.close()


def make_nats_target(url: str, replicas: int) -> None:
    """Make the target as a stream."""

    async def make() -> None:
        client = Client()
        await client.connect(url)
        stream = {"name": TARGET, "subjects": [TARGET], "num_replicas": replicas, "discard": "new"}
        answer = await client.request(f"$JS.API.STREAM.CREATE.{TARGET}", json.dumps(stream).encode(), timeout=30)
        await client.close()
        assert "error" not in json.loads(answer.data), answer.data

    asyncio.run(make())


MAKE_TARGET = {"kafka": make_kafka_target, "rabbitmq": make_rabbitmq_target, "nats": make_nats_target}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
