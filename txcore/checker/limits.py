"""The checker's bounds: how much it reads, holds and asks at once, how long it waits, when it retries."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from txcore import ranges
from txcore.enums import direct
from txcore.errors import ConfigError


@direct
class NewerRecords(enum.StrEnum):
    """A checker's answer to a record that a newer txcore has written."""

    STOP = "stop"  #: nothing more of its partition is judged until an upgraded checker takes over
    PARK = "park"  #: a half is parked with its bytes, to be resumed after the upgrade; an op is skipped and counted


@direct
class OrderOnPark(enum.StrEnum):
    """A checker's answer to later halves of the order key of a half that is parked."""

    HOLD = "hold"  #: they wait until an operator has resumed it, or has forced its end
    SKIP = "skip"  #: they are released


@dataclass(slots=True, kw_only=True)
class Limits:
    """The checker's bounds; each is a number of seconds unless named otherwise.

    Raises:
        ConfigError: a value is no number, a count is below 1, or a time below 0; `key` names it.
    """

    replay_max: int = 10_000  #: half records a restart may read again before the oldest are carried forward
    read_count_max: int = 1_000
    batch_count_max: int = 500  #: halves in hand at once per partition
    fence_batch_count_max: int = 200
    poll_s: float = 0.005
    idle_poll_s: float = 0.2
    mark_timeout_s: float = 5.0
    read_back_s: float = 5.0
    retry_s: float = 0.2  #: first back-off after a check without an answer or a failed write; doubles
    retry_max_s: float = 30.0
    check_deadline_s: float = 10.0
    calls_max: int = 8  #: questions to listener or fence at once
    immunity_min_s: float = 0.0  #: youngest age of a first check, where the half's own immunity is shorter
    refusals_max: int = 8  #: releases that a target refused before the half is parked as undeliverable
    checkpoint_interval_s: float = 2.0
    body_bytes_max: int = 4 << 20  #: bodies kept in memory; the others are read again when they are due
    newer_records: NewerRecords = NewerRecords.STOP
    order_on_park: OrderOnPark = OrderOnPark.HOLD

    def __post_init__(self) -> None:
        if self.newer_records not in list(NewerRecords):
            raise ConfigError(f'newer_records is "stop" or "park", not {self.newer_records!r}', key="newer_records")
        self.newer_records = NewerRecords(self.newer_records)
        if self.order_on_park not in list(OrderOnPark):
            raise ConfigError(f'order_on_park is "hold" or "skip", not {self.order_on_park!r}', key="order_on_park")
        self.order_on_park = OrderOnPark(self.order_on_park)
        ranges.require_bounds(self, time_min_s=0)
