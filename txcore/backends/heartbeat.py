"""The heartbeats of one backend's claims, on a thread of their own, for brokers on which members hold leases."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Final, Protocol

from txcore.errors import ClosedError
from txcore.wake import Wake

BEATS_PER_LEASE: Final = 5
"""Number of heartbeats in the time after which a silent member loses its partitions."""


class Member(Protocol):
    """A claim that keeps its lease by heartbeats."""

    @property
    def is_stuck(self) -> bool:
        """Whether its checker does not poll; then it does not beat, and its lease runs out."""

    def beat(self) -> None:
        """Begin a heartbeat, unless the last one is still under way; does not wait for the broker.

        Raises:
            ClosedError: the backend is closed.
        """

    def close(self, timeout_s: float) -> Future[None]:
        """See `Claim.close`."""


class Heartbeat:
    """The thread; it starts with the first member, and ends after `close`. Thread safe.

    Args:
        name: The thread's name.
        lease_s: Time of silence, in seconds, after which a member loses its partitions.
    """

    def __init__(self, name: str, lease_s: float) -> None:
        self._name = name
        self._pause_s = lease_s / BEATS_PER_LEASE
        self._members: list[Member] = []
        self._lock = threading.Lock()
        self._wake = Wake()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def add(self, member: Member) -> None:
        """Keep the heartbeat of *member*, whose first one begins at once."""
        member.beat()
        with self._lock:
            self._members.append(member)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def forget(self, member: Member) -> None:
        """Stop the heartbeat of *member*; nothing happens if it is stopped already."""
        with self._lock:
            if member in self._members:
                self._members.remove(member)

    def wake(self) -> None:
        """Have every member beat now."""
        self._wake.set()

    def close(self) -> None:
        """Close every member and end the thread; returns at once."""
        self._is_closed = True
        for member in self._kept():
            member.close(0)
        self._wake.set()

    def _kept(self) -> list[Member]:
        with self._lock:
            return list(self._members)

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.wait(self._pause_s)
            try:
                for member in self._kept():
                    if not member.is_stuck:
                        member.beat()
            except ClosedError:
                return
