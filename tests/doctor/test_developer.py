"""`--dev` on a default single node of each broker: what one node may lack is DEV, all else counts as before."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pika
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from nats.aio.client import Client
from txcore_conformance.kit import wait_until

GROUP, TARGET = "orders", "mail"
DOCUMENT = Path(__file__).parents[2] / "docs" / "doctor.md"


def make_topic(url):
    admin = AdminClient({"bootstrap.servers": url.partition("://")[2]})
    admin.create_topics([NewTopic(TARGET, 1)])[TARGET].result(20)


def make_queue(url):
    connection = pika.BlockingConnection(pika.URLParameters(url.replace("rabbitmq://", "amqp://") + "%2F"))
    connection.channel().queue_declare(TARGET, durable=True, arguments={"x-queue-type": "quorum"})
    connection.close()


def make_stream(url):
    async def make():
        client = Client()
        await client.connect(url)
        await client.jetstream().add_stream(name=TARGET, subjects=[TARGET])
        await client.close()

    asyncio.run(make())


TARGETS = {"kafka": make_topic, "rabbitmq": make_queue, "nats": make_stream}


def documented(name):
    """Return the checks that docs/doctor.md lists as possibly DEV on a broker."""
    section = DOCUMENT.read_text(encoding="utf-8").partition("## A developer's broker")[2].partition("\n## ")[0]
    return set(re.findall(rf"`({name}\.[a-z-]+)`", section))


@pytest.mark.parametrize("name", TARGETS)
def test_default_node_of_a_developer_is_all_right(name, start, make_group, command):
    """The exit code is 0, the DEV lines are the documented ones, and a failure of another kind counts as before."""
    with start(name) as broker:
        make_group(broker.url, GROUP, 2)
        TARGETS[name](broker.url)
        monitor = ["--monitor", broker.monitor_url] if broker.monitor_url else []
        arguments = [broker.url, "--group", GROUP, "--target", TARGET]
        assert command(*arguments, *monitor).returncode == 1

        def settled():
            ran = command(*arguments, *monitor, "--dev")
            return ran if "not known whether" not in ran.stdout else None

        ran = wait_until(settled, "a complete report: the management API is a little late")
        assert ran.returncode == 0, ran.stdout
        assert max(len(line) for line in ran.stdout.splitlines()) <= 80
        marked = set(re.findall(r"^DEV   (\S+):", ran.stdout, re.MULTILINE))
        without = command(*arguments, "--dev", "--json")
        assert without.returncode == 0, without.stdout
        marked |= {each["check"] for each in json.loads(without.stdout)["checks"] if each["level"] == "DEV"}
        assert marked == documented(name)
        assert re.search(r"^0 FAIL, 0 WARN, \d+ DEV, \d+ OK of", ran.stdout, re.MULTILINE)
        assert command(broker.url, "--group", "ordres", "--target", TARGET, "--dev").returncode == 1
        assert command(*arguments, "--dev", "--max-body", "3000000").returncode == 1
