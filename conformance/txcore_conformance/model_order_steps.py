"""The states and steps of the model of the order per key; see `model_order`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from txcore import wire
from txcore.checker import carrying, finish
from txcore.checker.checkpoint import checkpoint_of
from txcore.checker.decide import Decision, Pending, decide
from txcore.checker.parking import with_places
from txcore.checker.partition_state import PartitionState
from txcore.history.folding import Journeys
from txcore.history.resuming import next_generation
from txcore.records import Checkpoint, Half, LogRecord, Op, OpKind, ParkCode, Parked, Position, TargetMessage
from txcore_conformance.refine import adapter

A, B = (number.to_bytes(16, "big") for number in (1, 2))
NAMES: Final = {A: "A", B: "B"}
GROUP, KEY = "g", b"k"
NOW_MS: Final = 10_000.0


class Owner(NamedTuple):
    """One owner: its claim, where it began, what it has read, and what it is about to write.

    Attributes:
        end: Length of the half log when its claim came back; -1 before that.
        over: The halves whose release has settled, as far as it knows by its own releases.
        plan: The next write, as (step, transaction id, bytes); empty for none.
    """

    token: bytes
    begun: tuple[int | None, int | None, bytes]
    half_read: int
    op_read: int
    end: int = -1
    over: frozenset[bytes] = frozenset()
    plan: tuple[str, bytes, bytes] | tuple[()] = ()


class State(NamedTuple):
    """The logs as bytes, the targets by transaction, the checkpoint, the owners, and what may still happen."""

    halves: tuple[bytes, ...]
    ops: tuple[bytes, ...] = ()
    parked: tuple[bytes, ...] = ()
    targets: tuple[bytes, ...] = ()
    checkpoint: tuple[int | None, int | None, bytes] = (None, None, b"")
    owners: tuple[Owner, ...] = ()
    claims: int = 0
    takeovers: int = 0
    parkings: int = 0
    resumes: int = 0
    carries: int = 0
    producers: tuple[bytes, ...] = (A, B)  #: those that may still end their half
    breach: str = ""


class Bounds(NamedTuple):
    """How often each event may happen."""

    takeovers: int = 1
    parkings: int = 1
    resumes: int = 1
    carries: int = 1


FEW: Final = Bounds()


Edge = tuple[str, bool, State]
"""A step's name, whether it must happen at last, and the state after it."""


def half_of(identity: bytes) -> Half:
    """Return the record of a producer's half."""
    message = [TargetMessage("t", None, b"", {})]
    fields = (GROUP, 0, 0, 1, 0, 0, 3, False, "p", message)
    return Half(wire.OWNER_VERSION, identity, *fields, release=1, order_key=KEY)


@cache
def half_in(body: bytes) -> Half:
    """Return the half in a record."""
    return wire.decode_half(body)


@cache
def op_in(body: bytes) -> Op:
    """Return the op in a record."""
    (op,) = wire.decode_ops(body)
    return op


def op_of(kind: OpKind, identity: bytes, generation: int = 0, token: bytes = b"", reason: str = "") -> bytes:
    """Return the record of one op."""
    return wire.encode_ops([Op(kind, identity, generation, "c" if token else "p", token=token, reason=reason)])


# -- an owner's view ---------------------------------------------------------------------------------------------------


def view(s: State, owner: Owner) -> Any:
    """Return what the code of an owner sees as its tenure."""
    half, op, _ = owner.begun
    halves = s.halves[half or 0 : owner.half_read]
    ops = s.ops[op or 0 : owner.op_read]
    state = _folded(owner.begun, halves, ops, s.ops[: owner.op_read])
    for identity in owner.over:
        if (pending := state.pending.get(identity)) is not None:
            pending.note(missing=())
            state.released(pending)
    limits, clock = SimpleNamespace(retry_s=1.0), SimpleNamespace(elapsed_s=lambda: 0.0)
    return SimpleNamespace(
        state=state,
        is_replaying=owner.half_read < owner.end,
        now_ms=lambda: NOW_MS,
        broker_ms=lambda time_ms: time_ms,
        has_server_time=True,
        is_draining=False,
        may_write=True,
        has_room=True,
        in_round=(),
        marked_s=0.0,
        logs=SimpleNamespace(has_body=lambda _: True, gap=SimpleNamespace(mark=lambda _: None)),
        context=SimpleNamespace(limits=limits, clock=clock),
    )


def _folded(
    begun: tuple[int | None, int | None, bytes], halves: Sequence[bytes], ops: Sequence[bytes], all_ops: Sequence[bytes]
) -> PartitionState:
    half, op, token = begun
    start = None if half is None and op is None else Checkpoint(_position(half), _position(op), token)
    state = PartitionState(start)
    for place, body in enumerate(halves, half or 0):
        adapter.read_half(state, place, half_in(body))
    for place, body in enumerate(ops, op or 0):
        adapter.read_ops(state, place, [op_in(body)])
    adapter.look_back(state, [(place, [op_in(body)]) for place, body in enumerate(all_ops)])
    return state


def _position(place: int | None) -> Position | None:
    return None if place is None else Position(place)


# -- steps -------------------------------------------------------------------------------------------------------------


def successors(s: State, bounds: Bounds) -> Iterator[Edge]:
    """Yield every step that is possible in *s*."""
    yield from _producers(s)
    if s.takeovers < bounds.takeovers or not s.owners:
        yield "takeover", not s.owners, _takeover(s)
    for index, owner in enumerate(s.owners):
        others = s.owners[:index] + s.owners[index + 1 :]
        is_newest = owner.token == _token(s.claims)
        if s.takeovers < bounds.takeovers:
            yield f"owner {index} dies", False, s._replace(owners=others)
        for name, must, after, changed in _owned(s, owner, bounds, is_newest=is_newest):
            owners = others if changed is None else (*s.owners[:index], changed, *s.owners[index + 1 :])
            yield f"owner {index}: {name}", must and is_newest, after._replace(owners=owners)
    if s.resumes < bounds.resumes:
        yield from _resume(s)


def _token(number: int) -> bytes:
    return number.to_bytes(16, "little")


def _number(token: bytes) -> int:
    return int.from_bytes(token, "little")


def _producers(s: State) -> Iterator[Edge]:
    for identity in s.producers:
        left = s._replace(producers=tuple(each for each in s.producers if each != identity))
        for kind in (OpKind.COMMITTED, OpKind.ROLLBACK) if identity == A else (OpKind.COMMITTED,):
            yield f"producer: {kind.name} {NAMES[identity]}", True, _append(left, op_of(kind, identity))


def _append(s: State, op: bytes) -> State:
    return s._replace(ops=(*s.ops, op))


def _takeover(s: State) -> State:
    token = _token(s.claims + 1)
    half, op, _ = s.checkpoint
    owner = Owner(token, s.checkpoint, half or 0, op or 0)
    claimed = _append(s, op_of(OpKind.CLAIM, token, token=token))
    count = s.takeovers + bool(s.claims)
    return claimed._replace(owners=(*s.owners, owner), claims=s.claims + 1, takeovers=count)


def _owned(
    s: State, owner: Owner, bounds: Bounds, *, is_newest: bool
) -> Iterator[tuple[str, bool, State, Owner | None]]:
    """Yield the steps of one owner, each with the owner after it; None for one that gives up."""
    if owner.half_read < len(s.halves):
        yield "reads halves", True, s, owner._replace(half_read=len(s.halves))
    if owner.op_read < len(s.ops):
        read = s.ops[owner.op_read :]
        claims = [op_in(body).token for body in read if op_in(body).kind == OpKind.CLAIM]
        changed = owner._replace(op_read=len(s.ops))
        if owner.token in claims:
            claims, changed = claims[claims.index(owner.token) + 1 :], changed._replace(end=len(s.halves))
        elif owner.end < 0:
            claims = []
        yield "reads ops", True, s, None if claims else changed
    if owner.plan:
        yield from _write(s, owner)
    elif owner.end >= 0 and owner.half_read >= owner.end and owner.op_read == len(s.ops):
        yield from _plan(s, owner, bounds)
        if is_newest:
            yield from _checkpoint(s, owner)


def _plan(s: State, owner: Owner, bounds: Bounds) -> Iterator[tuple[str, bool, State, Owner]]:
    tenure = view(s, owner)
    for pending in tenure.state.kept():
        identity = pending.transaction_id
        name = NAMES[identity]
        if s.carries < bounds.carries and decide(pending, NOW_MS, must_carry=True) is Decision.CARRY:
            copy = wire.encode_half(carrying.copy_of(tenure, half_in(s.halves[pending.position]), pending))
            yield (
                f"plans to carry {name}",
                False,
                s._replace(carries=s.carries + 1),
                _with(owner, "carry", pending, copy),
            )
        decision = decide(pending, NOW_MS, must_carry=False)
        if decision is Decision.FINISH and finish.may_release(tenure, pending) and identity not in owner.over:
            yield f"plans to release {name}", True, s, _with(owner, "publish", pending)
        if decision is Decision.CHECK and identity not in s.producers:
            yield f"plans to commit {name}", True, s, _with(owner, "commit", pending)
        if s.parkings < bounds.parkings and identity == A and not pending.is_held:
            record = _parked(s, pending)
            yield (
                f"plans to park {name}",
                False,
                s._replace(parkings=s.parkings + 1),
                _with(owner, "park", pending, record),
            )


def _with(owner: Owner, step: str, pending: Pending, body: bytes = b"") -> Owner:
    return owner._replace(plan=(step, pending.transaction_id, body or bytes([pending.next_generation])))


def _parked(s: State, pending: Pending) -> bytes:
    half = with_places(half_in(s.halves[pending.position]), pending)
    fields = (ParkCode.UNDELIVERABLE, "", 0, "c", 0, b"", wire.encode_half(half))
    return wire.encode_parked(Parked(wire.VERSION, pending.transaction_id, pending.generation, *fields))


def _write(s: State, owner: Owner) -> Iterator[tuple[str, bool, State, Owner]]:
    step, identity, body = owner.plan  # type: ignore[misc]
    name, done = NAMES[identity], owner._replace(plan=())
    if step == "publish":
        published = _breached(s, owner)._replace(targets=(*s.targets, identity))
        yield f"publishes {name}", True, published, owner._replace(plan=("end", identity, body))
    elif step == "end":
        after = _append(s, op_of(OpKind.RELEASED, identity, body[0], owner.token))
        yield f"RELEASED {name}", True, after, _following(s, owner, done._replace(over=done.over | {identity}))
    elif step == "commit":
        committed = op_of(OpKind.COMMITTED, identity, body[0], owner.token)
        yield f"COMMITTED {name}", True, _append(_breached(s, owner), committed), done
    elif step == "carry":
        yield f"carries {name}", True, s._replace(halves=(*s.halves, body)), done
    else:
        generation = wire.decode_parked(body).generation
        discard = op_of(OpKind.DISCARD, identity, generation, owner.token, ParkCode.UNDELIVERABLE)
        yield f"DISCARD {name}", True, _append(s, discard)._replace(parked=(*s.parked, body)), done


def _following(s: State, owner: Owner, settled: Owner) -> Owner:
    """Return *settled*, which publishes the next half at once: it may not have read the newest records."""
    tenure = view(s, owner)
    pending = tenure.state.pending.get(owner.plan[1]) if owner.plan else None
    following = None if pending is None else tenure.state.released(pending)
    if following is None or not (finish.may_follow(tenure, following) and finish.may_release(tenure, following)):
        return settled
    return _with(settled, "publish", following)


def _breached(s: State, owner: Owner) -> State:
    """Note that an owner acts on A although an earlier owner has parked it, and no operator has resumed it."""
    assert owner.plan
    is_parked = any(number < _number(owner.token) for number in parked_under(s))
    return s._replace(breach="S12 held") if is_parked and owner.plan[1] == A and not s.resumes else s


def parked_under(s: State) -> list[int]:
    """Return the numbers of the claims of the DISCARDs that are in force."""
    token, numbers = b"", list[int]()
    for op in map(op_in, s.ops):
        token = op.token if op.kind == OpKind.CLAIM else token
        if op.kind == OpKind.DISCARD and op.token == token:
            numbers.append(_number(token))
    return numbers


def _checkpoint(s: State, owner: Owner) -> Iterator[tuple[str, bool, State, Owner]]:
    made = checkpoint_of(view(s, owner).state, (), NOW_MS, 0)
    bounds = (made.half, made.op, made.token)
    if bounds != s.checkpoint:
        yield f"checkpoint {made.half}, {made.op}", False, s._replace(checkpoint=bounds), owner


def _resume(s: State) -> Iterator[Edge]:
    fold = Journeys(0, b"", None, GROUP)
    for place, body in enumerate(s.halves):
        fold.read_half(LogRecord(Position(place), body))
    for place, body in enumerate(s.ops):
        list(fold.read_ops(LogRecord(Position(place), body)))
    for place, body in enumerate(s.parked):
        fold.read_parked(LogRecord(Position(place), body))
    journey = fold.found[A]
    if journey.is_parked:
        copy = wire.encode_half(next_generation(journey, "ann", "again"))
        yield "operator resumes A", False, s._replace(halves=(*s.halves, copy), resumes=s.resumes + 1)


def begin() -> State:
    """Return the state after an owner has claimed the partition and has read both halves; B is committed."""
    halves = (wire.encode_half(half_of(A)), wire.encode_half(half_of(B)))
    s = _takeover(State(halves, (op_of(OpKind.COMMITTED, B),), producers=(A,)))
    owner = s.owners[0]._replace(half_read=len(s.halves), op_read=len(s.ops), end=len(s.halves))
    return s._replace(owners=(owner,))
