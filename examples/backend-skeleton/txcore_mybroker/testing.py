"""The harness: how the suite opens the backend, makes a topic, and reads one as a consumer does."""

from __future__ import annotations

from collections.abc import Sequence

from txcore_conformance.harness import Delivered, Harness

from txcore_mybroker.backend import STUCK_AFTER_S, MyBackend, Options
from txcore_mybroker.server import SERVERS


class MyHarness(Harness):
    """One server for the whole run; topics are not created by publishing."""

    silent_member_max_s = STUCK_AFTER_S

    def open(self) -> MyBackend:
        """See `Harness.open`."""
        return MyBackend(Options())

    def create_topic(self, topic: str) -> None:
        """See `Harness.create_topic`."""
        SERVERS[""].topics.setdefault(topic, [])

    def read_topic(self, topic: str) -> Sequence[Delivered]:
        """See `Harness.read_topic`."""
        return [Delivered(position, *message) for position, message in enumerate(SERVERS[""].topics[topic])]

    def missing_topic(self) -> str:
        """See `Harness.missing_topic`."""
        return "never-made-topic"
