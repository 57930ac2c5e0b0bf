"""The harness, about ten lines by a backend's author, with which the suite tests the backend.

    class MyHarness(Harness):
        url = "mybroker://127.0.0.1"

        def open(self) -> Backend:
            return txcore.connect(self.url)

        def create_topic(self, topic: str) -> None:
            my_client.create(topic)

        def read_topic(self, topic: str) -> Sequence[Delivered]:
            return [Delivered(m.offset, m.key, m.value, m.headers) for m in my_client.read_all(topic)]

Run it with

    pytest -p txcore_conformance.pytest_plugin --pyargs txcore_conformance.suite --harness my_package:MyHarness

All other members have a default that suits an ordinary broker.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from txcore.port import Backend
from txcore.records import LogKind


@dataclass(frozen=True, slots=True)
class Delivered:
    """One message of a target topic, read with a plain client of the broker; `position` orders one `partition`."""

    position: int
    key: bytes | None
    body: bytes
    headers: Mapping[str, str | bytes]
    appended_ms: int | None = None
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """A test that this backend does not pass yet: `kind` is notimpl (the backend lacks it) or notyet (the broker)."""

    kind: str
    reason: str
    raises: type[BaseException] | tuple[type[BaseException], ...] = AssertionError

    def __post_init__(self) -> None:
        if self.kind not in {"notimpl", "notyet"}:
            raise ValueError(f"a gap's kind is notimpl or notyet, not {self.kind!r}")


class Harness(abc.ABC):
    """One backend under test. Every method is called from one thread; several backends may be open at once.

    The suite makes it without arguments, once per run.

    Attributes:
        gaps: Test name to `Gap`; strict: when the test passes, the run fails until the gap is deleted.
        url: URL for `txcore.connect` in a child process, of the same broker; "" when no other process can reach it.
        timeout_s: Longest time that a test waits for something that must happen.
        silent_member_max_s: Longest time that a connected member keeps partitions after its last poll, while others
            ask for them; None for no limit.
        immunity_s: Immunity of the orphaned halves of tests: longer than a few round trips to the broker.
    """

    gaps: ClassVar[Mapping[str, Gap]] = {}
    url: str = ""
    timeout_s: float = 20.0
    silent_member_max_s: float | None = None
    immunity_s: float = 0.1

    def start(self) -> None:  # noqa: B027 - a default, not a part that is missing
        """Start the broker; called once before the first test. The default does nothing."""

    def stop(self) -> None:  # noqa: B027
        """Stop the broker; called once after the last test. The default does nothing."""

    def private(self) -> Self | None:
        """Return the same harness, started, on a new broker that tests may kill; its `stop` removes that broker.

        None if there is no broker process. Raises any exception if such a broker is not available here.
        """
        return None

    @abc.abstractmethod
    def open(self) -> Backend:
        """Return a new connection to the broker; the caller closes it."""

    @abc.abstractmethod
    def create_topic(self, topic: str) -> None:
        """Create a target topic."""

    @abc.abstractmethod
    def read_topic(self, topic: str) -> Sequence[Delivered]:
        """Return all messages of a target topic, in its order, read with a plain client of the broker."""

    def topic(self, name: str) -> str:
        """Return the backend's own form of a topic name made of lower-case letters, digits and dashes."""
        return name

    def missing_topic(self) -> str | None:
        """Return a topic that does not exist and that publishing does not create; None if publishing creates topics."""
        return None

    def refuse_topic(self, topic: str, *, refuses: bool) -> bool:  # noqa: ARG002
        """Make an existing topic refuse all messages, or accept them again; False if that is impossible."""
        return False

    def limited_topic(
        self,
        name: str,  # noqa: ARG002
        *,
        message_size_max: int = 0,  # noqa: ARG002
        message_count_max: int = 0,  # noqa: ARG002
    ) -> str | None:
        """Create the topic `topic(name)` with a limit: it refuses larger messages, or all messages when it is full.

        None if there is no such limit. For Kafka, RabbitMQ and NATS the suite does it (`live_limits`).
        """
        return None

    def small_log_url(self, size: int) -> str:  # noqa: ARG002
        """Return the URL with which a new group's half log is full after *size* bytes; "" if there is none.

        For NATS the suite does it (`live_limits`).
        """
        return ""

    def append_stray(self, group: str, kind: LogKind, partition: int, body: bytes) -> bool:  # noqa: ARG002
        """Append bytes that txcore did not write to a log, like a foreign program with access; False if impossible."""
        return False

    def open_silenceable(self) -> tuple[Backend, Callable[[bool], None]] | None:
        """Return another connection, and a function that silences its reads (True) or lets them continue (False).

        None if that is impossible. Records that other connections append in this time must be stored.
        """
        return None

    def expire_member(self, group: str, member: str) -> bool:  # noqa: ARG002
        """Make the broker revoke a silent member's partitions now; False if that is impossible."""
        return False

    def trim(self, group: str, kind: LogKind, partition: int, before: int) -> bool:  # noqa: ARG002
        """Drop a log's records before position *before*, as retention does; False if that is impossible."""
        return False
