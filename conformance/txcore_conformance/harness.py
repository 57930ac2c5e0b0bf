"""What a backend's author gives to the suite: a harness of about ten lines.

    class MyHarness(Harness):
        url = "mybroker://127.0.0.1"

        def open(self) -> Backend:
            return txcore.connect(self.url)

        def create_topic(self, topic: str) -> None:
            my_client.create(topic)

        def read_topic(self, topic: str) -> Sequence[Delivered]:
            return [Delivered(m.offset, m.key, m.value, m.headers) for m in my_client.read_all(topic)]

Run it with `pytest --pyargs txcore_conformance.suite --harness my_package.testing:MyHarness`. Everything else here has
a default that suits a broker of the usual kind.
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
    """One message of a target topic, read with the broker's plain means; `position` orders one `partition`."""

    position: int
    key: bytes | None
    body: bytes
    headers: Mapping[str, str | bytes]
    appended_ms: int | None = None
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """A test that this backend does not pass yet: `kind` is notimpl (we could) or notyet (the broker must)."""

    kind: str
    reason: str
    raises: type[BaseException] | tuple[type[BaseException], ...] = AssertionError

    def __post_init__(self) -> None:
        if self.kind not in {"notimpl", "notyet"}:
            raise ValueError(f"a gap's kind is notimpl or notyet, not {self.kind!r}")


class Harness(abc.ABC):
    """One backend under test. Every method is called from one thread; several backends may be open at once.

    It is made without arguments, once per run.

    Attributes:
        gaps: Test name to `Gap`; strict: once the test passes, the run fails until the gap is deleted.
        url: What a child process passes to `txcore.connect` to reach the same broker; "" when no other process can.
        timeout_s: The longest that a test waits for something that must happen.
        quiet_s: How long a log must bring nothing before a test believes to have read all of it.
        silent_member_max_s: How long a member that is connected but does nothing keeps its partitions once another
            one joins; None for as long as it likes.
        immunity_s: Immunity of the halves that tests leave behind: longer than a few round trips to the broker.
    """

    gaps: ClassVar[Mapping[str, Gap]] = {}
    url: str = ""
    timeout_s: float = 20.0
    quiet_s: float = 0.03
    silent_member_max_s: float | None = None
    immunity_s: float = 0.1

    def start(self) -> None:  # noqa: B027 - a default, not a part that is missing
        """Bring the broker up; called once before the first test. The default does nothing."""

    def stop(self) -> None:  # noqa: B027
        """Take the broker down; called once after the last test. The default does nothing."""

    def private(self) -> Self | None:
        """Return the same harness, started, on a broker of its own that tests may kill; its `stop` removes it.

        None where there is no broker process. Raises whatever says that such a broker cannot be had here.
        """
        return None

    @abc.abstractmethod
    def open(self) -> Backend:
        """Return a new connection to the broker; who opened it closes it."""

    @abc.abstractmethod
    def create_topic(self, topic: str) -> None:
        """Make a target topic."""

    @abc.abstractmethod
    def read_topic(self, topic: str) -> Sequence[Delivered]:
        """Return everything in a target topic, in its order, read with the broker's plain means."""

    def topic(self, name: str) -> str:
        """Return the backend's own form of a topic name made of lower-case letters, digits and dashes."""
        return name

    def missing_topic(self) -> str | None:
        """Return a topic that does not exist and is not created by publishing; None where any topic will do."""
        return None

    def refuse_topic(self, topic: str, *, refuses: bool) -> bool:  # noqa: ARG002
        """Make an existing topic refuse whatever is published, or accept again; False where that cannot be done."""
        return False

    def limited_topic(
        self,
        name: str,  # noqa: ARG002
        *,
        message_size_max: int = 0,  # noqa: ARG002
        message_count_max: int = 0,  # noqa: ARG002
    ) -> str | None:
        """Make the topic `topic(name)` with a limit: it refuses larger messages, or any once it is full.

        None where there is no such limit. For Kafka, RabbitMQ and NATS the suite knows how (`live_limits`).
        """
        return None

    def small_log_url(self, size: int) -> str:  # noqa: ARG002
        """Return the URL under which a new group's half log is full after *size* bytes; "" where there is none.

        For NATS the suite knows how (`live_limits`).
        """
        return ""

    def append_stray(self, group: str, kind: LogKind, partition: int, body: bytes) -> bool:  # noqa: ARG002
        """Append bytes that no txcore wrote to a log, as a stranger with permissions may; False where that fails."""
        return False

    def open_silenceable(self) -> tuple[Backend, Callable[[bool], None]] | None:
        """Return another connection, and what makes its reads bring nothing (True) or goes on (False).

        None where that cannot be done. Records that other connections append meanwhile must be stored.
        """
        return None

    def expire_member(self, group: str, member: str) -> bool:  # noqa: ARG002
        """Make the broker take a silent member's partitions away now; False where that cannot be done."""
        return False

    def trim(self, group: str, kind: LogKind, partition: int, before: int) -> bool:  # noqa: ARG002
        """Drop a log's records before position *before*, as retention does; False where that cannot be done."""
        return False
