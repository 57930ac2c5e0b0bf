"""What a backend's author gives to the suite: a harness of about ten lines.

    class MyHarness(Harness):
        def open(self): return txcore.connect("mybroker://…")
        def create_topic(self, name): …
        def read_topic(self, topic): …

Run it with `pytest --pyargs txcore_conformance.suite --harness my_package.testing:MyHarness`.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from txcore.port import Backend


@dataclass(frozen=True, slots=True)
class Delivered:
    """One message of a target topic, read with the broker's plain means; `position` orders one topic."""

    position: int
    key: bytes | None
    body: bytes
    headers: Mapping[str, str | bytes]
    appended_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """A test that this backend does not pass yet: `kind` is notimpl (we could) or notyet (the broker must)."""

    kind: str
    reason: str
    raises: type[BaseException] = AssertionError


@dataclass(slots=True)
class Harness(abc.ABC):
    """One backend under test. Every method is called from one thread; several backends may be open at once.

    Attributes:
        gaps: Test name to `Gap`; strict: once the test passes, the run fails until the gap is deleted.
        url: What a child process passes to `txcore.connect` to reach the same broker; "" when no other process can.
    """

    gaps: ClassVar[Mapping[str, Gap]] = {}
    url: str = ""
    topics: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Bring the broker up; called once before the first test. The default does nothing."""

    def stop(self) -> None:
        """Take the broker down; called once after the last test. The default does nothing."""

    @abc.abstractmethod
    def open(self) -> Backend:
        """Return a new connection to the broker."""

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

    def refusing_topic(self) -> str | None:
        """Return an existing topic that refuses every message when it is published; None where there is none."""
        return None
