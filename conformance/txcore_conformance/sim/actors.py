"""Who does what in one seed: producers in every style, checkers that come and go, an operator, a pruner."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

from txcore import flow, wire
from txcore.breaker import Breaker
from txcore.checker import Membership
from txcore.checking import CheckContext, HalfView, Limits
from txcore.commands import Call, Flow
from txcore.ending import end
from txcore.errors import CommitUnknownError, TxcoreError
from txcore.ids import IdFactory, first_id_at
from txcore.journey import Journey, force_op, journeys_of, next_generation
from txcore.message import CheckPolicy, LocalTransactionState, Message
from txcore.records import (
    Forced,
    Half,
    HalfRecord,
    LogKind,
    LogRecord,
    Op,
    OpKind,
    Outcome,
    Resolution,
    Status,
)
from txcore.results import EndState
from txcore.sending import Sending, send_all, send_in_transaction
from txcore.table import Mode
from txcore.transaction import LocalTransaction, ProducerContext, begin, publish
from txcore_conformance.sim.database import SimConnection, SimDatabase, SimDatabaseError, SimFence
from txcore_conformance.sim.world import EPOCH_MS, Process, SimReporter, World

GROUP = "simulated"
CHECK_MAX = 3
LIMITS = Limits(
    replay_max=12,
    poll_s=0.08,
    idle_poll_s=0.8,
    mark_timeout_s=3.0,
    read_back_s=3.0,
    retry_max_s=4.0,
    check_deadline_s=5.0,
    refusals_max=4,
    checkpoint_interval_s=0.7,
    orphan_keep_s=30.0,
    body_bytes_max=1500,
)


class Style(enum.Enum):
    """How a transaction is made."""

    DATABASE = "database"
    PRIMITIVE = "primitive"
    LISTENER = "listener"
    FENCED_LISTENER = "fenced listener"


class Wish(enum.Enum):
    """What the application wants."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    ERROR = "error"  #: the local transaction raises, applied or not


@dataclass(slots=True, eq=False)
class Truth:
    """What really happened to one transaction, beside what the logs say."""

    style: Style
    wish: Wish
    core: LocalTransaction
    process: Process
    work_s: float
    is_stuck: bool = False
    is_long: bool = False
    unknown_answers: int = 0
    has_contrary_caller: bool = False

    @property
    def is_fenced(self) -> bool:
        """Whether a fence decides it."""
        return self.style is not Style.LISTENER


@dataclass(slots=True)
class Cast:
    """Everybody in one seed."""

    world: World
    database: SimDatabase
    partition_count: int
    truths: dict[bytes, Truth] = field(default_factory=dict)
    local: dict[bytes, bool] = field(default_factory=dict)  #: listener style: what the application's own store says
    checkers: list[Process] = field(default_factory=list)
    memberships: list[tuple[Process, Membership]] = field(default_factory=list)
    table_rng: random.Random = field(default_factory=random.Random)
    many_rng: random.Random = field(default_factory=random.Random)
    many_chance: float = 0.0  #: that a message of the listener style is sent with others, in one batch
    mode: Mode = Mode.HALF  #: of producers with a fence
    relays: list[Process] = field(default_factory=list)
    lost_tail: set[bytes] = field(default_factory=set)
    lost_claims: set[int] = field(default_factory=set)
    is_eaten: bool = False  #: ops are gone for good, so bounds and tokens of checkpoints can no longer be judged
    discarded_ms: dict[bytes, int] = field(default_factory=dict)
    resumed: dict[bytes, int] = field(default_factory=dict)
    #: Everything ever stored in a log, beyond what retention left there.
    archive: dict[tuple[LogKind, int], list[LogRecord]] = field(default_factory=dict)
    numbers: int = 0

    def choose_many(self, rng: random.Random) -> None:
        """Have messages of the listener style sent with others, in some seeds, with randomness of its own."""
        self.many_rng, self.many_chance = rng, rng.choice([0.0, 0.0, 0.5])

    def is_committed(self, truth: Truth) -> bool:
        """Return whether the local transaction committed."""
        identity = truth.core.transaction_id
        return identity in self.database.committed if truth.is_fenced else self.local.get(identity, False)


# -- producers -------------------------------------------------------------------------------------------------------


def start_producer(cast: Cast, styles: list[Style], count: int) -> None:
    """Start a process that makes *count* transactions, several at once."""
    world = cast.world
    cast.numbers += 1
    process = Process(world, f"p{cast.numbers}")
    margin_s = world.broker.profile.capabilities.release_time_max_s
    for fenced in (True, False):
        fence = SimFence(cast.database, process) if fenced else None
        context = ProducerContext(
            GROUP,
            cast.partition_count,
            process.clock,
            IdFactory(process.clock, world.rng),
            CheckPolicy(immunity_s=margin_s + 0.5 + world.rng.random() * 3),
            margin_s,
            100_000,
            f"p:{process.name}",
            cast_fence(fence),
            _arbitrates(world),
        )
        if fenced:
            _set_mode(context, cast)
        for _ in range(count):
            style = world.rng.choice(styles)
            if (style is not Style.LISTENER) == fenced:
                at_s = world.rng.random() * 12
                world.at(at_s, lambda context=context, style=style: _begin(cast, process, context, style))  # type: ignore[misc]
    process.loop.on_command = _probe(cast)


def _set_mode(context: ProducerContext, cast: Cast) -> None:
    """Have producers with a fence use the message table; the deadline of a half is shorter than a slow answer."""
    context.mode = cast.mode
    if cast.mode is Mode.AUTO:
        context.half_deadline_s = cast.table_rng.choice([0.05, 0.4, 3.0])
        context.breaker = Breaker(context.clock, probe_s=2.0, open_s=0.5, open_max_s=4.0)


def _arbitrates(world: World) -> bool:
    capabilities = world.broker.profile.capabilities
    return capabilities.atomic_release and capabilities.resolution_is_unique


def start_stuck_producer(cast: Cast, work_s: float) -> None:
    """A producer that keeps its database transaction open for ever so long; it must not hold up the others."""
    world = cast.world
    cast.numbers += 1
    process = Process(world, f"p{cast.numbers}")
    process.is_immortal = True
    context = ProducerContext(
        GROUP,
        cast.partition_count,
        process.clock,
        IdFactory(process.clock, world.rng),
        CheckPolicy(immunity_s=3.0),
        world.broker.profile.capabilities.release_time_max_s,
        100_000,
        f"p:{process.name}",
        cast_fence(SimFence(cast.database, process)),
        _arbitrates(world),
    )
    process.loop.on_command = _probe(cast)
    _begin(cast, process, context, Style.PRIMITIVE, work_s)
    world.note("stuck producer")


def _begin(cast: Cast, process: Process, context: ProducerContext, style: Style, stuck_s: float | None = None) -> None:
    if not process.is_alive:
        return
    world = cast.world
    core = begin(context)
    wish = world.rng.choices([Wish.COMMIT, Wish.ROLLBACK, Wish.ERROR], [6, 2, 2])[0]
    work_s = world.rng.choice([0.01, 0.01, 0.3, 2.0, 8.0]) * world.rng.random() if stuck_s is None else stuck_s
    truth = Truth(style, wish, core, process, work_s, is_long=stuck_s is not None)
    cast.truths[core.transaction_id] = truth
    flows = {
        Style.DATABASE: _database_style,
        Style.PRIMITIVE: _primitive_style,
        Style.LISTENER: _listener_style,
        Style.FENCED_LISTENER: _listener_style,
    }
    process.loop.spawn(flows[style](cast, truth), lambda task: _ended(world, task.error))


def _ended(world: World, error: BaseException | None) -> None:
    if error is None:
        return
    if not isinstance(error, TxcoreError | SimDatabaseError):
        world.break_rule(f"a flow ended with {error!r}")
    world.note(type(error).__name__)


def _messages(cast: Cast) -> list[Message]:
    world = cast.world
    count = world.rng.choice([1, 1, 2, 3])
    policy = CheckPolicy(3.0 + world.rng.random() * 3, 1.0 + world.rng.random(), CHECK_MAX)
    return [
        Message(f"t{world.rng.randrange(3)}", world.rng.randbytes(8 + i), _key(cast, i), {"n": str(i)}, policy)
        for i in range(count)
    ]


def _key(cast: Cast, index: int) -> bytes | None:
    """Return few keys where their order counts."""
    if cast.mode is Mode.HALF:
        return b"k" if index else None
    return cast.table_rng.choice([b"k0", b"k1", None])


def _database_style(cast: Cast, truth: Truth) -> Flow[None]:
    core = truth.core
    yield from flow.database_begin(core, cast.database)
    for message in _messages(cast):
        publish(core, message)
    yield truth.work_s
    if truth.wish is not Wish.COMMIT:
        yield from flow.database_abort(core)
        return
    try:
        result = yield from flow.database_finish(core)
    except CommitUnknownError:
        cast.world.note("commit unknown")
        raise
    cast.world.note(f"end {result.state.value}" if result else "end nothing")


def _primitive_style(cast: Cast, truth: Truth) -> Flow[None]:
    core, database = truth.core, cast.database
    fence = core.context.fence
    assert isinstance(fence, SimFence)
    for message in _messages(cast):
        publish(core, message)
    connection = database.connect(truth.process)
    database.begin(connection)
    connection.has_business = True
    yield from flow.prepare(core, connection)
    yield truth.work_s
    kind = OpKind.COMMIT
    if truth.wish is Wish.ROLLBACK:
        database.roll_back(connection)
        kind = OpKind.ROLLBACK
    else:
        try:
            yield Call(fence.commit, (connection,))
        except SimDatabaseError:
            # What a careful application does; txcore must still find out itself whether it may.
            database.roll_back(connection)
            kind = OpKind.ROLLBACK
    result = yield from end(core, kind)
    cast.world.note(f"end {kind.name} {result.state.value}")
    if cast.world.rng.random() < 0.3:
        yield from end(core, kind)


def _listener_style(cast: Cast, truth: Truth) -> Flow[None]:
    if cast.many_rng.random() < cast.many_chance:
        yield from _many_style(cast, truth)
        return
    message = _messages(cast)[0]
    result = yield from send_in_transaction(truth.core, SimListener(cast, truth), message, None)
    cast.world.note(f"end {result.state.value} {result.end.state.value if result.end else '-'}")
    accepted = result.end is not None and result.end.state is EndState.ACCEPTED
    if accepted and not truth.is_fenced and cast.world.rng.random() < 0.2:
        _contrary(cast, truth)


def _many_style(cast: Cast, truth: Truth) -> Flow[None]:
    truths = [truth, *(_another(cast, truth) for _ in range(cast.many_rng.randint(0, 5)))]
    sendings = [Sending(each.core, _messages(cast)[0], each) for each in truths]
    yield from send_all(sendings, SimListener(cast))
    for sending in sendings:
        _ended(cast.world, sending.error)
        if sending.result is not None:
            result = sending.result.end
            cast.world.note(f"end of many {sending.result.state.value} {result.state.value if result else '-'}")


def _another(cast: Cast, truth: Truth) -> Truth:
    """Return one more transaction of the same producer, with randomness of its own."""
    rng, context = cast.many_rng, truth.core.context
    core = begin(replace(context, ids=IdFactory(context.clock, rng)))
    wish = rng.choices([Wish.COMMIT, Wish.ROLLBACK, Wish.ERROR], [6, 2, 2])[0]
    other = Truth(truth.style, wish, core, truth.process, rng.choice([0.01, 0.01, 0.3, 2.0]) * rng.random())
    cast.truths[core.transaction_id] = other
    return other


def _contrary(cast: Cast, truth: Truth) -> None:
    """Let the application end a transaction the other way too, without targets: the first end must hold."""
    assert truth.core.half is not None
    kind = OpKind.ROLLBACK if truth.core.asked is OpKind.COMMIT else OpKind.COMMIT
    op = Op(kind, truth.core.transaction_id, 0, "p:contrary", 0)
    resolution = Resolution(truth.core.half, op, (), b"", "p:contrary")

    def send() -> None:
        journey = journeys(cast).get(truth.core.transaction_id)
        if journey is not None and journey.final:
            truth.has_contrary_caller = True
            cast.world.note("contrary end")
            _send(cast, truth.process, resolution)

    cast.world.at(0.5 + cast.world.rng.random() * 3, send)


def _note_resume(cast: Cast, record: HalfRecord) -> None:
    cast.resumed[record.transaction_id] = record.generation


def _send(
    cast: Cast, process: Process, command: HalfRecord | Resolution, on_durable: Callable[[], None] = lambda: None
) -> None:
    def one() -> Flow[Outcome]:
        outcome: Outcome = yield command
        if outcome.status is Status.DURABLE:
            on_durable()
        return outcome

    if process.is_alive:
        process.loop.spawn(one(), lambda task: _ended(cast.world, task.error))


def cast_fence(fence: SimFence | None) -> Any:
    """Hide that the simulated fence's calls are generators, which the simulated loop plays out in time."""
    return fence


class SimListener:
    """The application's listener; truthful, but slow, forgetful and sometimes broken."""

    def __init__(self, cast: Cast, truth: Truth | None = None) -> None:
        self._cast = cast
        self._truth = truth

    def execute_local_transaction(self, message: Message, arg: Any) -> Generator[Any, Any, LocalTransactionState]:  # noqa: ARG002
        """Run the local transaction, of many the one in *arg*."""
        cast, truth = self._cast, arg or self._truth
        assert truth is not None
        if truth.is_fenced:
            return self._fenced_local(cast, truth)
        return self._plain_local(cast, truth)

    def _plain_local(self, cast: Cast, truth: Truth) -> Generator[Any, Any, LocalTransactionState]:
        identity = truth.core.transaction_id
        yield truth.work_s
        if truth.wish is Wish.ROLLBACK:
            cast.local[identity] = False
            return LocalTransactionState.ROLLBACK
        if truth.wish is Wish.ERROR and cast.world.rng.random() < 0.5:
            cast.local[identity] = False
            raise SimDatabaseError("not applied")
        cast.local[identity] = True
        if truth.wish is Wish.ERROR:
            raise SimDatabaseError("applied")
        return LocalTransactionState.COMMIT

    def _fenced_local(self, cast: Cast, truth: Truth) -> Generator[Any, Any, LocalTransactionState]:
        core = truth.core
        fence = core.context.fence
        assert isinstance(fence, SimFence)
        connection: SimConnection = cast.database.connect(truth.process)
        cast.database.begin(connection)
        connection.has_business = True
        # Not current_transaction(): simulated calls take time, so other flows run in this thread meanwhile.
        yield from core.fence(connection)
        yield truth.work_s
        if truth.wish is Wish.ROLLBACK:
            cast.database.roll_back(connection)
            return LocalTransactionState.ROLLBACK
        yield from fence.commit(connection)
        if truth.wish is Wish.ERROR:
            raise SimDatabaseError("applied")
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, half: HalfView) -> LocalTransactionState:
        """Answer from the application's own store; ROLLBACK only when it can never commit any more."""
        cast, world = self._cast, self._cast.world
        truth = cast.truths[half.transaction_id]
        world.note("listener asked")
        if world.chance(world.swarm.database):
            world.note("listener no answer")
            if world.rng.random() < 0.5:
                raise SimDatabaseError("unreachable")
            return None  # type: ignore[return-value]
        known = cast.local.get(half.transaction_id)
        is_over = not truth.process.is_alive or (known is False and not truth.is_stuck)
        if known and not truth.is_stuck:
            return LocalTransactionState.COMMIT
        if is_over and not truth.is_stuck:
            return LocalTransactionState.ROLLBACK
        truth.unknown_answers += 1
        return LocalTransactionState.UNKNOWN


# -- checkers ----------------------------------------------------------------------------------------------------------


def start_checker(cast: Cast, *, is_immortal: bool = False) -> Process:
    """Start a checker process; when it dies its membership lapses after a while."""
    world = cast.world
    cast.numbers += 1
    process = Process(world, f"c{cast.numbers}")
    process.is_immortal = is_immortal
    claim = process.backend.claim(GROUP, process.name)
    process.loop.claim = claim
    context = CheckContext(
        process.backend,
        GROUP,
        process.clock,
        world.rng,
        claim,
        CheckPolicy(interval_s=1.5, check_max=CHECK_MAX),
        LIMITS,
        SimReporter(world),
        f"c:{process.name}",
        (SimListener(cast),),
        cast_fence(SimFence(cast.database, process)),
    )
    membership = Membership(context, process.loop)
    cast.checkers.append(process)
    cast.memberships.append((process, membership))
    process.loop.spawn(membership.run(), lambda task: _ended(world, task.error))
    lapse_s = 0.5 + world.rng.random() * 3
    process.on_death.append(lambda: world.at(lapse_s, lambda: world.broker.leave(GROUP, process.name)))
    process.on_death.append(lambda: world.at(world.rng.random() * 3, lambda: _restart(cast)))
    _watch(cast, process)
    return process


def _restart(cast: Cast) -> None:
    alive = sum(process.is_alive for process in cast.checkers)
    if alive < 3:
        start_checker(cast)


def _watch(cast: Cast, process: Process) -> None:
    """Expire a checker's membership while it stands still, as a session timeout does."""
    world = cast.world

    def look() -> None:
        if process.is_alive and world.is_faulty:
            if process.frozen_until_s - world.now_s > 1.0:
                world.note("session expired")
                world.broker.expire(GROUP, process.name)
            world.at(0.5, look)

    world.at(0.5, look)


# -- operator, pruner ------------------------------------------------------------------------------------------------


def journeys(cast: Cast) -> dict[bytes, Journey]:
    """Return every transaction's journey from the whole logs."""
    found: dict[bytes, Journey] = {}
    for partition in range(cast.partition_count):
        halves, ops, parked = (cast.archive.get((kind, partition), ()) for kind in LogKind)
        found.update(journeys_of(partition, halves, ops, parked))
    return found


def operate(cast: Cast) -> None:
    """Resume what is parked (at times twice), and force what is pending without a fence."""
    world = cast.world
    process = Process(world, "operator")
    process.is_immortal = True
    for journey in journeys(cast).values():
        if journey.is_parked and journey.half is not None and world.rng.random() < 0.7:
            world.note("operator resumes")
            record = next_generation(journey, "operator", "try again")
            for _ in range(world.rng.choice([1, 1, 2])):
                _send(cast, process, record, lambda record=record: _note_resume(cast, record))  # type: ignore[misc]
        elif journey.is_pending:
            _force(cast, process, journey)


def _force(cast: Cast, process: Process, journey: Journey) -> None:
    truth = cast.truths.get(journey.transaction_id)
    if truth is None or truth.is_fenced or cast.world.rng.random() < 0.7:
        return
    known = cast.local.get(journey.transaction_id)
    if known is None and truth.process.is_alive:
        return
    kind = OpKind.COMMIT if known else OpKind.ROLLBACK
    cast.world.note(f"operator forces {kind.name}")
    op = force_op(journey, kind, journey.generation, "operator", 0, Forced.YES, "known")
    record = HalfRecord(GROUP, journey.partition, journey.transaction_id, journey.generation, b"", ())
    _send(cast, process, Resolution(record, op, (), b"", "operator", flush=True))


def prune(cast: Cast) -> None:
    """Prune the fence table."""
    prune_now(cast)


def prune_now(cast: Cast) -> None:
    """Raise the horizon, then delete what is closed and old enough."""
    world = cast.world
    below = first_id_at(EPOCH_MS + round(world.now_s * 1000) - 8_000)
    found = journeys(cast)
    final = {identity for identity, journey in found.items() if journey.final}
    pending = {identity for identity, journey in found.items() if journey.is_pending or journey.is_parked}
    cast.database.prune(below, lambda identity: identity in final, lambda identity: identity in pending)


def _probe(cast: Cast) -> Callable[[Process, Any], None]:
    """The probe for R6: judge every release of a producer against the reading taken before its half."""
    began: dict[bytes, tuple[float, float]] = {}

    def look(process: Process, command: Any) -> None:
        if isinstance(command, HalfRecord):
            half: Half = wire.decode_half(command.body)
            began[command.transaction_id] = (process.clock.elapsed_s(), half.immunity_ms / 1000)
        elif isinstance(command, Resolution) and command.op is not None and command.op.kind == OpKind.COMMIT:
            if command.by == "p:contrary" or command.half.transaction_id not in began or _arbitrates(cast.world):
                return
            start_s, immunity_s = began[command.half.transaction_id]
            margin_s = cast.world.broker.profile.capabilities.release_time_max_s
            if process.clock.elapsed_s() > start_s + immunity_s - margin_s + 1e-3:  # the half keeps whole milliseconds
                cast.world.break_rule("R6 a producer published after its horizon")

    return look
