"""The settings of one run of the demo, passed to each of its processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import txcore
from txcore.port import Backend
from txcore.signing import GroupKeys, SigningKeys

WORKERS_MAX: Final = 8
DECLINED_EVERY: Final = 20
"""Step of the order numbers that the service declines after it wrote their row, so that the transaction rolls back."""
GROUP: Final = "orders"


@dataclass(frozen=True, slots=True)
class Settings:
    """One run.

    Attributes:
        broker_url: URL of any backend that other processes can reach.
        database_url: Any synchronous SQLAlchemy URL.
        name: Distinguishes this run's group, topic and tables from those of others on the same servers.
        kills_min: Least number of killed processes for a proof.
        immunity_s: Time, in seconds, after a half's append during which it is not checked.
        signing: The keys with which the run's group signs its records; None for no signatures.
    """

    broker_url: str
    database_url: str
    name: str
    orders: int = 1_000
    kills_min: int = 20
    seed: int = 1
    immunity_s: float = 3.0
    signing: GroupKeys | None = None

    def connect(self) -> Backend:
        """Open the broker; see `txcore.connect`."""
        signing = SigningKeys({self.group: self.signing}) if self.signing is not None else None
        return txcore.connect(self.broker_url, signing=signing)

    @property
    def group(self) -> str:
        """The producer group of this run."""
        return f"{self.name}-{GROUP}"

    @property
    def topic(self) -> str:
        """The target topic of this run."""
        return f"{self.name}.created"

    @property
    def workers(self) -> int:
        """The number of processes that take orders."""
        return min(WORKERS_MAX, self.orders)

    def numbers(self, worker: int) -> range:
        """Return the numbers of the orders that *worker* takes."""
        return range(1 + worker, self.orders + 1, self.workers)


def is_declined(number: int) -> bool:
    """Return whether the service declines this order."""
    return number % DECLINED_EVERY == 0
