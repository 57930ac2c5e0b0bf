"""Producers in every style, their listeners, and the probe that watches when they publish."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from txcore import wire
from txcore.errors import CommitUnknownError
from txcore.ids import IdFactory
from txcore.message import CheckPolicy, Message
from txcore.message_table import Mode
from txcore.producer import transaction_flow as flow
from txcore.producer.finish import end
from txcore.producer.handles import attach, handle_of
from txcore.producer.listener_batch import Sendings, send_all
from txcore.producer.listener_style import KINDS, send_in_transaction
from txcore.producer.transaction import LocalTransaction, ProducerContext, begin, publish
from txcore.records import Half, HalfRecord, Op, OpKind, Resolution
from txcore.results import EndState
from txcore.runtime.circuit_breaker import CircuitBreaker
from txcore.runtime.commands import Call, Flow
from txcore_conformance.sim.cancels import plan_cancels
from txcore_conformance.sim.cast import CHECK_MAX, GROUP, Cast, Style, Truth, Wish, ended, send
from txcore_conformance.sim.database import SimDatabaseError, SimFence
from txcore_conformance.sim.listening import SimListener
from txcore_conformance.sim.ordering import order_key_of
from txcore_conformance.sim.owning import contrary_kind, judge_end, release_of
from txcore_conformance.sim.process import Process
from txcore_conformance.sim.world import World

COMMITS: Final = frozenset({OpKind.COMMIT, OpKind.COMMITTED})
LONG_INTERVAL_S: Final = 8.0
"""An interval between checks within which partitions change hands."""
LONG_INTERVAL_SHARE: Final = 0.25


def start_producer(cast: Cast, styles: list[Style], count: int) -> None:
    """Start a process that makes *count* transactions, several at once."""
    world = cast.world
    cast.numbers += 1
    process = Process(world, f"p{cast.numbers}")
    cast.processes.append(process)
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
            release=release_of(cast),
        )
        if fenced:
            _set_mode(context, cast)
        for _ in range(count):
            style = world.rng.choice(styles)
            if (style is not Style.LISTENER) == fenced:
                at_s = world.rng.random() * 12
                world.at(at_s, lambda context=context, style=style: _begin(cast, process, context, style))  # type: ignore[misc]
    process.loop.on_command = _probe(cast)
    if cast.surprise_rng.random() < 0.2:
        process.ends_after_s = cast.surprise_rng.uniform(1, 14)


def _set_mode(context: ProducerContext, cast: Cast) -> None:
    """Let producers with a fence use the message table; some deadlines of a half are shorter than a slow answer."""
    context.mode = cast.mode
    if cast.mode is Mode.AUTO:
        context.half_deadline_s = cast.table_rng.choice([0.05, 0.4, 3.0])
        context.breaker = CircuitBreaker(context.clock, probe_s=2.0, pause_first_s=0.5, pause_max_s=4.0)


def _arbitrates(world: World) -> bool:
    capabilities = world.broker.profile.capabilities
    return capabilities.atomic_release and capabilities.resolution_is_unique


def start_stuck_producer(cast: Cast, work_s: float) -> None:
    """Start a producer that keeps its database transaction open for *work_s*; it must not delay the others."""
    world = cast.world
    cast.numbers += 1
    process = Process(world, f"p{cast.numbers}")
    cast.processes.append(process)
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
    cast.truths[core.identity] = truth
    flows = {
        Style.DATABASE: _database_style,
        Style.PRIMITIVE: _primitive_style,
        Style.LISTENER: _listener_style,
        Style.FENCED_LISTENER: _listener_style,
    }
    process.loop.spawn(flows[style](cast, truth), lambda task: _has_ended(cast, process, task.error))


def _has_ended(cast: Cast, process: Process, error: BaseException | None) -> None:
    """Note the end of a transaction; after the last one a program that ends normally does so at once."""
    ended(cast.world, error)
    if process.ends_after_s <= cast.world.now_s and not process.loop.task_count:
        process.end()


def _delayed_messages(cast: Cast, truth: Truth) -> Iterator[Message]:
    """Yield the messages of a transaction that the table can hold, in some seeds with delays."""
    world, rng = cast.world, cast.later_rng
    is_delayed = cast.later_chance > 0 and rng.random() < cast.later_chance
    for index, message in enumerate(_messages(cast, truth.core)):
        if is_delayed and message.order_key is None and rng.random() < 0.7:
            delay_s = rng.choice([0.3, 3.0, 12.0]) * rng.random() + 0.001
            due_ms = truth.dues_ms[index] = world.now_ms() + math.ceil(delay_s * 1000)
            if rng.random() < 0.5:
                message.delay_s = delay_s
            else:
                message.deliver_at = datetime.fromtimestamp(due_ms // 1000, UTC) + timedelta(milliseconds=due_ms % 1000)
            world.note("delayed message")
        yield message
    if truth.dues_ms:
        plan_cancels(cast, truth)


def _messages(cast: Cast, core: LocalTransaction) -> list[Message]:
    world = cast.world
    count = world.rng.choice([1, 1, 2, 3])
    immunity_s, share = 3.0 + world.rng.random() * 3, world.rng.random()
    interval_s = LONG_INTERVAL_S if share < LONG_INTERVAL_SHARE else 1.0 + share
    policy = CheckPolicy(immunity_s=immunity_s, interval_s=interval_s, check_max=CHECK_MAX)
    order_key = order_key_of(cast, core)
    return [
        Message(
            f"t{world.rng.randrange(3)}",
            world.rng.randbytes(8 + i),
            _key(cast, i),
            {"n": str(i)},
            policy,
            order_key=order_key,
        )
        for i in range(count)
    ]


def _key(cast: Cast, index: int) -> bytes | None:
    """Return one of a few keys in the modes in which their order counts."""
    if cast.mode is Mode.HALF:
        return b"k" if index else None
    return cast.table_rng.choice([b"k0", b"k1", None])


def _database_style(cast: Cast, truth: Truth) -> Flow[None]:
    core = truth.core
    yield from flow.database_begin(core, cast.database)
    for message in _delayed_messages(cast, truth):
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
    judge_end(cast, truth, result)


def _primitive_style(cast: Cast, truth: Truth) -> Flow[None]:
    core, database = truth.core, cast.database
    fence = core.context.fence
    assert isinstance(fence, SimFence)
    for message in _delayed_messages(cast, truth):
        publish(core, message)
    connection = database.connect(truth.process)
    database.begin(connection)
    connection.has_business = True
    yield from flow.prepare(core, connection)
    rng = random.Random(f"early holder {core.identity.hex()}")
    if rng.random() < cast.holders_chance:
        cast.world.note("second holder of an open transaction")
        cast.world.causes[core.identity] += 1  # committed twice, or checked beside its producer
        _hold_twice(cast, truth, rng, truth.work_s)
    yield truth.work_s
    kind = OpKind.COMMIT
    if truth.wish is Wish.ROLLBACK:
        database.roll_back(connection)
        kind = OpKind.ROLLBACK
    else:
        try:
            yield Call(fence.commit, (connection,))
        except SimDatabaseError:
            # A careful application does this; txcore must still find out itself whether it may roll back.
            database.roll_back(connection)
            kind = OpKind.ROLLBACK
    if cast.surprise_rng.random() < cast.holders_chance:
        cast.world.note(f"second holder beside {kind.name}")
        if kind is OpKind.COMMIT:
            cast.world.causes[core.identity] += 1  # delivered twice, unless the store arbitrates
        _hold_twice(cast, truth, cast.surprise_rng, cast.surprise_rng.choice([0.01, 1.0]))
    result = yield from end(core, kind)
    cast.world.note(f"end {kind.name} {result.state.value}")
    judge_end(cast, truth, result)
    if cast.world.rng.random() < 0.3:
        yield from end(core, kind)


def _hold_twice(cast: Cast, truth: Truth, rng: random.Random, within_s: float) -> None:
    """Let another holder of the same handle commit, whatever the first one does."""
    second = attach(truth.core.context, handle_of(truth.core))

    def commit() -> Flow[None]:
        yield rng.random() * within_s
        result = yield from end(second, OpKind.COMMIT)
        cast.world.note(f"second holder {result.state.value}")

    truth.process.loop.spawn(commit(), lambda task: ended(cast.world, task.error))


def _listener_style(cast: Cast, truth: Truth) -> Flow[None]:
    if cast.many_rng.random() < cast.many_chance:
        yield from _many_style(cast, truth)
        return
    message = _messages(cast, truth.core)[0]
    result = yield from send_in_transaction(truth.core, SimListener(cast, truth), message, None)
    cast.world.note(f"end {result.local_transaction_state.value} {result.end.state.value if result.end else '-'}")
    judge_end(cast, truth, result.end)
    accepted = result.end is not None and result.end.state is EndState.ACCEPTED
    if accepted and not truth.is_fenced and cast.world.rng.random() < 0.2:
        _contrary(cast, truth)


def _many_style(cast: Cast, truth: Truth) -> Flow[None]:
    truths = [truth, *(_another(cast, truth) for _ in range(cast.many_rng.randint(0, 5)))]
    messages = [_messages(cast, each.core)[0] for each in truths]
    if cast.many_rng.random() < 0.5:
        messages = [
            Message(message.topic, message.body, message.key, order_key=message.order_key) for message in messages
        ]
    pairs = [*zip(messages, truths, strict=True)]
    sendings = Sendings([each.core for each in truths], pairs, [None] * len(truths))
    yield from send_all(sendings, SimListener(cast))
    for sent, result in zip(truths, sendings.results, strict=True):
        assert result is not None
        sent.core.asked = KINDS.get(result.local_transaction_state)  # a batch keeps ends in its results only
        judge_end(cast, sent, result.end)
        if result.end is None and result.error is not None:
            ended(cast.world, result.error)
        end = result.end.state.value if result.end else "-"
        cast.world.note(f"end of many {result.local_transaction_state.value} {end}")


def _another(cast: Cast, truth: Truth) -> Truth:
    """Return one more transaction of the same producer, with separate randomness."""
    rng, context = cast.many_rng, truth.core.context
    core = begin(replace(context, ids=IdFactory(context.clock, rng)))
    wish = rng.choices([Wish.COMMIT, Wish.ROLLBACK, Wish.ERROR], [6, 2, 2])[0]
    other = Truth(truth.style, wish, core, truth.process, rng.choice([0.01, 0.01, 0.3, 2.0]) * rng.random())
    cast.truths[core.identity] = other
    return other


def _contrary(cast: Cast, truth: Truth) -> None:
    """Let the application end a transaction the other way too, without targets: the first end must hold."""
    assert truth.core.half is not None
    op = Op(contrary_kind(truth), truth.core.identity, 0, "p:contrary", 0)
    resolution = Resolution(truth.core.half, op, (), b"", "p:contrary")

    def contradict() -> None:
        journey = cast.archive.journey(truth.core.identity)
        if journey is not None and (journey.final or journey.committed_at >= 0):
            truth.has_contrary_caller = True
            cast.world.note("contrary end")
            send(cast, truth.process, resolution)

    cast.world.at(0.5 + cast.world.rng.random() * 3, contradict)


def cast_fence(fence: SimFence | None) -> Any:
    """Hide that the simulated fence's calls are generators, which the simulated loop runs in simulated time."""
    return fence


def _probe(cast: Cast) -> Callable[[Process, Any], None]:
    """Return the probe for R6: it judges every release of a producer by the clock reading before its half."""
    began: dict[bytes, tuple[float, float]] = {}

    def look(process: Process, command: Any) -> None:
        if isinstance(command, HalfRecord):
            half: Half = wire.decode_half(command.body)
            began[command.transaction_id] = (process.clock.elapsed_s(), half.immunity_ms / 1000)
        elif isinstance(command, Resolution) and command.op is not None and command.op.kind in COMMITS:
            if command.by == "p:contrary" or command.half.transaction_id not in began or _arbitrates(cast.world):
                return
            start_s, immunity_s = began[command.half.transaction_id]
            margin_s = cast.world.broker.profile.capabilities.release_time_max_s
            if process.clock.elapsed_s() > start_s + immunity_s - margin_s + 1e-3:  # the half has whole milliseconds
                cast.world.break_rule("R6 a producer published after its horizon")

    return look
