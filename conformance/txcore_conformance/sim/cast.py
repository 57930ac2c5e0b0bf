"""The processes of one seed, the real outcome of each transaction, and the objects that all parts of the play need."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from txcore.checker.checker import Membership
from txcore.errors import TxcoreError
from txcore.history.journey import Journey
from txcore.message_table import Mode
from txcore.producer.transaction import LocalTransaction
from txcore.records import HalfRecord, LogKind, Op, Outcome, Resolution, Status
from txcore.runtime.commands import Flow
from txcore_conformance.sim.archive import Archive
from txcore_conformance.sim.bounds import Bounds
from txcore_conformance.sim.database import SimDatabase, SimDatabaseError
from txcore_conformance.sim.process import Process
from txcore_conformance.sim.world import World

GROUP = "simulated"
CHECK_MAX = 3
CHECK_INTERVAL_S = 1.5
"""The checkers' interval between checks, for halves that have none of their own."""


class Style(enum.Enum):
    """The style in which a transaction is made."""

    DATABASE = "database"
    PRIMITIVE = "primitive"
    LISTENER = "listener"
    FENCED_LISTENER = "fenced listener"


FORGETFUL_SHARE: Final = 0.15
"""Share of the listeners of producers with a fence that never call it."""


class Wish(enum.Enum):
    """The end that the application wants."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    ERROR = "error"  #: the local transaction raises, applied or not


@dataclass(slots=True, eq=False)
class Truth:
    """The real outcome of one transaction, independent of the logs."""

    style: Style
    wish: Wish
    core: LocalTransaction
    process: Process
    work_s: float
    is_stuck: bool = False
    is_long: bool = False
    dues_ms: dict[int, int] = field(default_factory=dict)  #: earliest times of its delayed messages, by index
    has_been_late: bool = False  #: a cancel was answered TOO_LATE
    unknown_answers: int = 0
    has_contrary_caller: bool = False

    @property
    def forgets_fence(self) -> bool:
        """Whether the listener commits without a fence row, although its producer has a fence."""
        if self.style is not Style.FENCED_LISTENER:
            return False
        return random.Random(f"forgets {self.core.transaction_id.hex()}").random() < FORGETFUL_SHARE

    @property
    def is_fenced(self) -> bool:
        """Whether a fence decides the transaction."""
        return self.style is not Style.LISTENER and not self.forgets_fence


@dataclass(slots=True)
class Cast:
    """The processes and the shared objects of one seed."""

    world: World
    database: SimDatabase
    partition_count: int
    archive: Archive
    truths: dict[bytes, Truth] = field(default_factory=dict)
    local: dict[bytes, bool] = field(default_factory=dict)  #: listener style: outcomes in the application's own store
    checkers: list[Process] = field(default_factory=list)
    memberships: list[tuple[Process, Membership]] = field(default_factory=list)
    table_rng: random.Random = field(default_factory=random.Random)
    surprise_rng: random.Random = field(default_factory=random.Random)
    bounds: Bounds = field(default_factory=Bounds)
    many_rng: random.Random = field(default_factory=random.Random)
    many_chance: float = 0.0  #: share of messages of the listener style that are sent in a batch
    mode: Mode = Mode.HALF  #: mode of producers with a fence
    later_rng: random.Random = field(default_factory=random.Random)
    later_chance: float = 0.0  #: share of fenced transactions with a delayed message
    owner_rng: random.Random = field(default_factory=random.Random)
    owner_chance: float = 0.0  #: share of producers whose halves are released by their partitions' owners
    order_rng: random.Random = field(default_factory=random.Random)
    order_keys: tuple[bytes, ...] = ()
    order_chance: float = 0.0  #: share of transactions with an order key, of those that owners release
    relays: list[Process] = field(default_factory=list)
    lost_tail: set[bytes] = field(default_factory=set)
    lost_claims: set[int] = field(default_factory=set)
    is_eaten: bool = False  #: retention deleted ops, so bounds and tokens of checkpoints can no longer be judged
    discarded_ms: dict[bytes, int] = field(default_factory=dict)
    resumed: dict[bytes, int] = field(default_factory=dict)
    checked: dict[bytes, Op] = field(default_factory=dict)  #: the newest CHECKED since a NUDGE or a copy, in force
    numbers: int = 0
    faults_end_s: float = 30.0
    silence_at_s: float | None = None  #: time at which one log becomes silent
    holders_chance: float = 0.0  #: share of prepared transactions with two holders
    strewn: list[tuple[int, bytes]] = field(default_factory=list)  #: records in half logs that are not halves
    newer: dict[tuple[LogKind, int], int] = field(default_factory=dict)  #: position of a newer txcore's first record
    has_met_newer: bool = False  #: a newer record was written; a checker may have stopped at it, even if it was lost
    is_upgraded: bool = False
    misled: list[Process] = field(default_factory=list)  #: checkers whose fence uses another database
    processes: list[Process] = field(default_factory=list)

    def choose_many(self, rng: random.Random) -> None:
        """Let some seeds send messages of the listener style in batches, with separate randomness."""
        self.many_rng, self.many_chance = rng, rng.choice([0.0, 0.0, 0.5])

    def choose_later(self, rng: random.Random, *, is_real: bool) -> None:
        """Let some seeds delay messages; the real database's clock is not simulated, so there none."""
        self.later_rng, chance = rng, rng.choice([0.0] * 6 + [0.3, 0.8])
        self.later_chance = 0.0 if is_real else chance

    @property
    def has_relays(self) -> bool:
        """Whether messages may go by the table."""
        return self.mode is not Mode.HALF or self.later_chance > 0

    def is_committed(self, truth: Truth) -> bool:
        """Return whether the local transaction committed."""
        identity = truth.core.identity
        return identity in self.database.committed if truth.is_fenced else self.local.get(identity, False)


def ended(world: World, error: BaseException | None) -> None:
    """Count the error that ended a flow; an error of another kind than txcore's or the database's breaks a rule."""
    if error is None:
        return
    if not isinstance(error, TxcoreError | SimDatabaseError):
        world.break_rule(f"a flow ended with {error!r}")
    world.note(type(error).__name__)


def send(
    cast: Cast, process: Process, command: HalfRecord | Resolution, on_durable: Callable[[], None] = lambda: None
) -> None:
    """Let a process hand over one command, in a separate flow."""

    def one() -> Flow[Outcome]:
        outcome: Outcome = yield command
        if outcome.status is Status.DURABLE:
            on_durable()
        return outcome

    if process.is_alive:
        process.loop.spawn(one(), lambda task: ended(cast.world, task.error))


def journeys(cast: Cast) -> dict[bytes, Journey]:
    """Return every transaction's journey from the whole logs."""
    return {journey.transaction_id: journey for journey in cast.archive.journeys()}
