"""What users of the crash fixture write: one transaction of theirs, and how to look at what it left behind.

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

The class stands at the top of an importable file and is made without arguments, in the process that runs the test and
in each child that is killed. It needs the extra `sql`.
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
    """Be reached where nobody is killed."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one run happens: the URL of a broker for `txcore.connect`, and that of an empty database."""

    broker: str
    database: str
    reach: Callable[[str], None] = _nothing

    def step(self, name: str) -> None:
        """Be killed here too: a step of the user's own, such as between two calls of other services."""
        self.reach(name)


class Scenario(abc.ABC):
    """One transaction under test.

    Attributes:
        group: The producer group that `run` uses; its checker finishes what the killed left behind.
        topics: The target topics that `run` publishes to. They are made; on a real broker under these names.
        preload: Modules that are imported once and not by each child, such as a large framework's. None of them may
            open a connection or start a thread when it is imported.
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
        """Make the empty tables, those of the fence too. Nobody is killed here."""

    @abc.abstractmethod
    def run(self, place: Place) -> None:
        """Run the transaction once, as the service does, in a process that is killed on the way."""

    @abc.abstractmethod
    def committed(self, place: Place) -> Iterable[Any]:
        """Return a name for everything in the database that a message must tell of, such as the order's number."""

    @abc.abstractmethod
    def announced(self, message: Delivered) -> Any:
        """Return the name of what a message tells of."""

    def fence(self, place: Place) -> Fence | None:
        """Return what the checker asks first, by default the fence with its usual table in the place's database."""
        from sqlalchemy import NullPool, create_engine  # noqa: PLC0415 - an extra

        from txcore import SqlFence  # noqa: PLC0415

        return SqlFence(create_engine(place.database, poolclass=NullPool))

    def listener(self, place: Place) -> Any:  # noqa: ARG002
        """Return the listener that answers for halves without a fence; None when there are none."""
        return None
