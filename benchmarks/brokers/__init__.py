"""The brokers under measurement, one module each: started once per run, and reached with the broker's own driver.

Nothing in this package uses a txcore backend: it makes target topics, publishes the yardsticks and consumes as any
other program would.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast

IN_PROCESS: Final = ("memory", "sqlite")
SERVERS: Final = ("kafka", "rabbitmq", "nats")
NAMES: Final = (*IN_PROCESS, *SERVERS)
PARTITIONS: Final = 4
"""Number of partitions of a group's logs, and of target topics where the broker has partitions."""
WINDOW_COUNT: Final = 10_000
"""Most messages of a pipelined yardstick that wait for their acknowledgement."""
TIMEOUT_S: Final = 30.0


class RawPublisher(Protocol):
    """Publishes with the driver alone to one topic, with the same durability of acknowledgements as txcore.

    Attributes:
        body: Body of the next messages.
    """

    body: bytes

    def publish(self) -> None:
        """Publish one message and wait for its acknowledgement, which another thread receives."""

    def hand_over(self, count: int) -> None:
        """Publish *count* messages; waits only while too many are unacknowledged."""

    def drain(self) -> None:
        """Wait until everything handed over is acknowledged."""

    def close(self) -> None:
        """Disconnect."""


class Server(Protocol):
    """A broker in separate processes, empty at first.

    Attributes:
        url: URL for `txcore.connect`.
        version: Version that the broker reports.
        pid: Id of the leading process of the broker.
    """

    url: str
    version: str
    pid: int

    def create_topic(self, topic: str) -> None:
        """Create a target topic as the broker's manual advises for messages that must not be lost."""

    def raw_publisher(self, topic: str, body: bytes, key: bytes) -> RawPublisher:
        """Connect to publish the same message again and again."""

    def clear(self) -> None:
        """Delete every topic, so that one row's messages do not slow down the next row."""

    def close(self) -> None:
        """End the broker."""


Arrived = Callable[[bytes], None]


class Consume(Protocol):
    """Interface of the function `consume` of each broker's module, which receives as an ordinary consumer does."""

    def __call__(self, url: str, topic: str, arrived: Arrived, ready: Callable[[], None]) -> None:
        """Call *ready* once, and then *arrived* with each body as soon as it arrives, until the process ends."""


def start_server(name: str) -> Server:
    """Start one of `SERVERS`.

    Raises:
        ServerUnavailableError: the broker's programs are not available on this machine.
    """
    return cast("Server", import_module(f"benchmarks.brokers.{name}").start())


def consume_of(name: str) -> Consume:
    """Return the function `consume` of that broker's module."""
    return cast("Consume", import_module(f"benchmarks.brokers.{name}").consume)


def url_of(name: str, folder: Path) -> str:
    """Return the URL of a new broker that runs in this process."""
    return "memory://" if name == "memory" else f"sqlite:///{folder / 'broker.db'}"
