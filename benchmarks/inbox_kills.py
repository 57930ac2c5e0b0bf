"""`python -m benchmarks.inbox_kills`: repeated deliveries and a consumer killed repeatedly; one effect of each message?

Targets are published directly, a share of them a second time. A consumer in a separate process handles them with the
inbox, writes an effect that no constraint guards, commits, acknowledges, and is killed (-9) at random moments. In the
end each message must have exactly one effect; the exit code is 0 if it has.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import sqlalchemy
import typer
from sqlalchemy import text
from txcore_conformance.demo.consuming import open_consumer
from txcore_conformance.demo.shop import shop_engine
from txcore_conformance.kit import Recorder, wait_until
from txcore_conformance.raw import target_only

import txcore
from benchmarks.sidecar import broker_url
from txcore.port import Backend
from txcore.records import Resolution, Status

TOPIC: Final = "inbox.kills"
GROUP: Final = "inbox-kills"
WAIT_S: Final = 3_600.0
IDLE_S: Final = 20.0
"""Silence, in seconds, after which the consumer ends; longer than a broker needs to detect a dead consumer."""

app = typer.Typer(help=__doc__, add_completion=False)


@app.command()
def consume(url: str, topic: str, database: str) -> None:
    """Handle messages until no more come; the other command starts and kills this one."""
    engine = shop_engine(database)
    inbox = txcore.Inbox(engine)
    consumer = open_consumer(url, topic, GROUP)
    came_s = time.monotonic()
    while time.monotonic() < came_s + IDLE_S:
        for message in consumer.poll(100):
            came_s = time.monotonic()
            with engine.begin() as connection, inbox.receive(connection, message) as first:
                if first:
                    values = {"message": str(message.headers["txcore-id"])}
                    connection.execute(text("INSERT INTO effects VALUES (:message)"), values)
            consumer.ack(message.position)
        time.sleep(0.01)
    consumer.close()


@app.command()
def run(
    broker: Annotated[str, typer.Option(help="sqlite, kafka, rabbitmq, nats, or a URL.")] = "sqlite",
    database: Annotated[str, typer.Option(help="The consumer's database; a file of its own when empty.")] = "",
    deliveries: Annotated[int, typer.Option(min=10, help="Messages published, repeated ones included.")] = 100_000,
    repeated: Annotated[float, typer.Option(min=0, max=0.5, help="Share of messages that repeat another.")] = 0.3,
    kills: Annotated[int, typer.Option(min=0, help="Number of kills of the consumer.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the repeated messages and of the moments of kills.")] = 1,
) -> None:
    """Publish messages, kill the consumer, and count the effects."""
    with tempfile.TemporaryDirectory(prefix="txcore-inbox-") as name, broker_url(broker, Path(name)) as url:
        chance = random.Random(seed)
        engine = shop_engine(database or f"sqlite:///{Path(name) / 'consumer.db'}")
        txcore.Inbox(engine).create()
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (message VARCHAR(64) NOT NULL)"))
        opened = open_consumer(url, TOPIC, GROUP)
        opened.close()
        backend = txcore.connect(url)
        count = deliveries - round(deliveries * repeated)
        publish(backend, opened.topic, count, deliveries - count, chance)
        backend.close().result(10)
        print(f"{deliveries} deliveries of {count} messages published")
        began_s = time.monotonic()
        command = [sys.executable, "-m", "benchmarks.inbox_kills", "consume", url, opened.topic]
        command += [engine.url.render_as_string(hide_password=False)]
        kill_often(command, engine, sorted(chance.sample(range(1, count), kills)))
        found, distinct = effects(engine)
        print(
            f"{kills} kills: {found} effects of {distinct} messages in {time.monotonic() - began_s:.1f} s; "
            f"lost {count - distinct}, applied again {found - distinct}, load average {os.getloadavg()[0]:.1f}"
        )
        engine.dispose()
        if (found, distinct) != (count, count):
            raise typer.Exit(1)


def publish(backend: Backend, topic: str, count: int, repeated: int, chance: random.Random) -> None:
    """Publish *count* messages, and *repeated* of them once more at some later place."""
    backend.ensure_group(GROUP).result(60)
    items = [target_only(GROUP, topic, b"%d" % number) for number in range(count)]
    places = [(float(number), item) for number, item in enumerate(items)]
    places += [
        (number + chance.random() * 1_000, items[number]) for number in sorted(chance.sample(range(count), repeated))
    ]
    ordered = [item for _, item in sorted(places, key=lambda place: place[0])]
    size = min(500, backend.capabilities.batch_count_max)
    for start in range(0, len(ordered), size):
        release(backend, ordered[start : start + size])


def release(backend: Backend, items: Sequence[Resolution]) -> None:
    """Publish and wait; a broker that drops repetitions itself leaves fewer to the inbox."""
    batch = Recorder(items)
    backend.release(batch)
    assert {outcome.status for outcome in batch.wait(backend, 60.0)} == {Status.DURABLE}


def kill_often(command: Sequence[str], engine: sqlalchemy.Engine, moments: Sequence[int]) -> None:
    """Run a consumer to its end, killed and started again when the number of effects reaches each moment."""
    for moment in moments:
        process = subprocess.Popen(command)
        try:
            wait_until(lambda: _has(engine, moment, process), f"{moment} effects", WAIT_S)  # noqa: B023
        finally:
            process.kill()
            process.wait()
    subprocess.run(command, check=True, timeout=WAIT_S)


def effects(engine: sqlalchemy.Engine) -> tuple[int, int]:
    """Return the number of effects, and the number of messages with an effect."""
    with engine.connect() as connection:
        row = connection.execute(text("SELECT count(*), count(DISTINCT message) FROM effects")).one()
    return int(row[0]), int(row[1])


def _has(engine: sqlalchemy.Engine, moment: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() in {None, 0}, f"the consumer ended with {process.returncode}"
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM effects")).scalar_one()) >= moment


if __name__ == "__main__":
    app()
