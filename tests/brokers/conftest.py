"""Brokers for one module, and each broker's plain client, which puts and reads texts."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import nats as nats_client
import pika
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from txcore_conformance import brokers
from txcore_conformance.required import obtained

TOPIC = "texts"


class Client:
    """A broker's plain client on one URL; every call opens a connection and raises the driver's errors."""

    def __init__(
        self,
        url: str,
        *,
        ca: Path | None = None,
        certificate: tuple[Path, Path] | None = None,
        copies: int = 1,
        time_max_s: int = 10,
    ) -> None:
        parts = urlsplit(url)
        self.user, self.password = parts.username, parts.password
        self.hosts = parts.netloc.rpartition("@")[2].split(",")
        self.ca = ca
        self.certificate = certificate
        self.copies = copies
        self.time_max_s = time_max_s

    def create(self) -> None:
        """Create the topic or queue for the texts."""

    def put(self, text: str) -> None:
        """Store a text and wait for the broker's acknowledgement."""

    def texts(self) -> list[str]:
        """Return all texts that were put."""

    def tls(self) -> ssl.SSLContext | None:
        if self.ca is None:
            return None
        context = ssl.create_default_context(cafile=self.ca)
        if self.certificate is not None:
            context.load_cert_chain(*self.certificate)
        return context


class KafkaClient(Client):
    def _settings(self) -> dict[str, object]:
        settings = {"bootstrap.servers": ",".join(self.hosts), "log_level": 0}
        protocol = "SASL_" if self.user else ""
        if self.user:
            settings |= {"sasl.mechanism": "PLAIN", "sasl.username": self.user, "sasl.password": self.password}
        if self.ca is not None:
            settings["ssl.ca.location"] = str(self.ca)
            if self.certificate is not None:
                settings |= dict(
                    zip(("ssl.certificate.location", "ssl.key.location"), map(str, self.certificate), strict=True)
                )
        return settings | {"security.protocol": protocol + ("PLAINTEXT" if self.ca is None else "SSL")}

    def create(self) -> None:
        admin = AdminClient(self._settings())
        made = admin.create_topics([NewTopic(TOPIC, 1, self.copies)], request_timeout=self.time_max_s)
        made[TOPIC].result(2 * self.time_max_s)

    def put(self, text: str) -> None:
        errors = []
        producer = Producer(self._settings() | {"message.timeout.ms": self.time_max_s * 1000})
        producer.produce(TOPIC, text.encode(), on_delivery=lambda error, _message: errors.append(error))
        producer.flush()
        if errors[0] is not None:
            raise KafkaException(errors[0])

    def texts(self) -> list[str]:
        consumer = Consumer(self._settings() | {"group.id": "reader", "auto.offset.reset": "error"})
        _low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), self.time_max_s)
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found = [consumer.poll(self.time_max_s).value().decode() for _ in range(high)]
        consumer.close()
        return found


class RabbitmqClient(Client):
    @contextlib.contextmanager
    def _channel(self):
        host, _, port = self.hosts[0].partition(":")
        tls = self.tls()
        parameters = pika.ConnectionParameters(
            host,
            int(port),
            "/",
            pika.PlainCredentials(self.user, self.password),
            ssl_options=None if tls is None else pika.SSLOptions(tls, "127.0.0.1"),
            heartbeat=0,
            socket_timeout=self.time_max_s,
            blocked_connection_timeout=self.time_max_s,
        )
        connection = pika.BlockingConnection(parameters)
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()

    def create(self) -> None:
        kind = "quorum" if self.copies > 1 else "classic"
        with self._channel() as channel:
            channel.queue_declare(TOPIC, durable=True, arguments={"x-queue-type": kind})

    def put(self, text: str) -> None:
        with self._channel() as channel:
            channel.confirm_delivery()
            channel.basic_publish("", TOPIC, text.encode(), pika.BasicProperties(delivery_mode=2), mandatory=True)

    def texts(self) -> list[str]:
        found = []
        with self._channel() as channel:
            while (message := channel.basic_get(TOPIC))[0] is not None:
                found.append(message[2].decode())
        return found


class NatsClient(Client):
    async def _connect(self):
        servers = [f"nats://{host}" for host in self.hosts]
        return await nats_client.connect(
            servers,
            user=self.user,
            password=self.password,
            tls=self.tls(),
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0.1,
            connect_timeout=self.time_max_s,
        )

    async def _with(self, use):
        client = await self._connect()
        try:
            return await asyncio.wait_for(use(client.jetstream()), self.time_max_s)
        finally:
            await client.close()

    def create(self) -> None:
        asyncio.run(self._with(lambda js: js.add_stream(name=TOPIC, subjects=[TOPIC], num_replicas=self.copies)))

    def put(self, text: str) -> None:
        asyncio.run(self._with(lambda js: js.publish(TOPIC, text.encode())))

    def texts(self) -> list[str]:
        async def read(js):
            count = (await js.stream_info(TOPIC)).state.messages
            return [(await js.get_msg(TOPIC, seq)).data.decode() for seq in range(1, count + 1)]

        return asyncio.run(self._with(read))


TROUBLE = (KafkaException, pika.exceptions.AMQPError, nats_client.errors.Error, OSError, TimeoutError)
CLIENTS = {"kafka": KafkaClient, "rabbitmq": RabbitmqClient, "nats": NatsClient}


@pytest.fixture(scope="session")
def client() -> Callable[..., Client]:
    """Make a plain client of a broker by its name and URL."""
    return lambda name, url, **options: CLIENTS[name](url, **options)


@pytest.fixture(scope="session")
def trouble() -> tuple[type[Exception], ...]:
    """The exceptions that the drivers raise if they are refused or reach no server."""
    return TROUBLE


@pytest.fixture(scope="session")
def started() -> Callable[..., brokers.Broker]:
    """Start a broker; skip the test if that is impossible and TXCORE_REQUIRE does not name the broker."""
    return lambda name, *args, **options: obtained(name, lambda: brokers.start(name, *args, own=True, **options))


@pytest.fixture(scope="session")
def available() -> Callable[[str], None]:
    """Fetch a broker's programs and remove the remains of a killed run; skip under the same condition."""
    return lambda name: obtained(name, lambda: brokers.managed(name)).remove()


@pytest.fixture(scope="session")
def clustered() -> Callable[[str], brokers.Cluster]:
    """Start a cluster; skip under the same condition."""
    return lambda name: obtained(name, lambda: brokers.cluster(name))


@pytest.fixture(scope="module", params=brokers.NAMES)
def broker(request: pytest.FixtureRequest, started) -> Iterator[brokers.Broker]:
    """Each of the three brokers, started once for a module."""
    made = started(request.param)
    yield made
    made.remove()


@pytest.fixture
def nats(started) -> Iterator[brokers.Broker]:
    """The broker that starts fastest, for tests that are the same for all three brokers."""
    made = started("nats")
    yield made
    made.remove()


@pytest.fixture(scope="session")
def eventually() -> Callable[[Callable[[], object]], None]:
    """Wait until a condition holds, for at most a minute."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        pause = threading.Event()
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in a minute"
            pause.wait(0.01)

    return wait


@pytest.fixture(scope="session")
def runs() -> Callable[[int], bool]:
    """Return a function that checks whether a process exists and is no zombie."""

    def state(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False

    return state
