"""The scenario that applications write for the crash fixture: one transaction, and functions that read its results.

    class PlaceOrder(Scenario):
        group = "shop"
        topics = ("orders.created",)

        def setup(self, place):
            shop.create_tables(place.database)

        def run(self, place):
            shop.place_order(place.broker, place.database, item="tea")

        def committed(self, place):
            return shop.order_numbers(place.database)

        def announced(self, message):
            return json.loads(message.body)["order"]

The class is at the top level of an importable file. It is made without arguments, in the process that runs the test
and in each child that is killed. It needs the extra `sql`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txcore.fence import Fence
from txcore_conformance.harness import Delivered


def _nothing(name: str) -> None:
    """Do nothing, in a process that is not killed."""


@dataclass(frozen=True, slots=True)
class Place:
    """Place of one run: the URL of a broker for `txcore.connect`, and the URL of an empty database."""

    broker: str
    database: str
    reach: Callable[[str], None] = _nothing

    def step(self, name: str) -> None:
        """Add a step at which the process is killed too, such as between two calls of other services."""
        self.reach(name)


class Scenario(abc.ABC):
    """One transaction under test.

    Attributes:
        group: Producer group that `run` uses; its checker finishes the halves of the killed processes.
        topics: Target topics that `run` publishes to; they are created, on a real broker under these names.
        preload: Modules that are imported once and not by each child, such as a large framework's. Their import must
            not open a connection or start a thread.
    """

    group: str
    topics: Sequence[str]
    preload: Sequence[str] = ()

    def database(self, folder: Path) -> str:
        """Return the SQLAlchemy URL of a database for one run, by default a new SQLite file in *folder*.

        For a server return its URL, and let `setup` empty it.
        """
        return f"sqlite:///{folder / 'service.db'}"

    @abc.abstractmethod
    def setup(self, place: Place) -> None:
        """Create the empty tables, including the fence's; no process is killed here."""

    @abc.abstractmethod
    def run(self, place: Place) -> None:
        """Run the transaction once, as the service does, in a process that is killed at a step."""

    def restart(self, place: Place) -> None:  # noqa: B027 - most services do nothing
        """Do after a kill what the service does when it starts again, such as handling an unacknowledged message.

        It runs in a process of its own before the checker, and is not killed. By default it does nothing.
        """

    @abc.abstractmethod
    def committed(self, place: Place) -> Iterable[Any]:
        """Return the names of all records in the database that a message must announce, such as order numbers."""

    @abc.abstractmethod
    def announced(self, message: Delivered) -> Any:
        """Return the name of the record that a message announces."""

    def fence(self, place: Place) -> Fence | None:
        """Return the checker's fence, by default the one with the default table in the place's database."""
        from sqlalchemy import NullPool, create_engine  # noqa: PLC0415 - an extra

        from txcore import SqlFence  # noqa: PLC0415

        return SqlFence(create_engine(place.database, poolclass=NullPool))

    def listener(self, place: Place) -> Any:  # noqa: ARG002
        """Return the listener that answers for halves without a fence; None if there are none."""
        return None
