"""Events that no process expects: silent logs, strays and newer records, wrong clocks, a growing group, a normal end.

Each surprise is drawn with separate randomness, so that it changes nothing in seeds without it.
"""

from __future__ import annotations

import dataclasses

import msgspec

from txcore import wire
from txcore.checker.limits import NewerRecords
from txcore.errors import ConfigError, NewerRecordError, WireFormatError
from txcore.records import Half, LogKind, OpKind, TargetMessage
from txcore_conformance.sim.archive import ops_in
from txcore_conformance.sim.cast import GROUP, Cast
from txcore_conformance.sim.checkers import start_checker
from txcore_conformance.sim.database import SimDatabase
from txcore_conformance.sim.process import Process

SILENCE_S = 60.0
LOGS = (LogKind.HALF, LogKind.OP)
JUMPS_MS = (-3_600_000, -10_000, -250, 250, 10_000, 3_600_000, 31_536_000_000)
SKEW_MAX_MS = 2_000
#: Rare paths to which the surprises lead; a run of some hundred seeds hits each.
PATHS = (
    "silent half log",
    "silent op log",
    "small reads",
    "stray half",
    "stray op",
    "cut half",
    "cut op",
    "newer half",
    "newer op",
    "forged decided half",
    "forged copy",
    "half.unproven",
    "upgrade",
    "half.parked NEWER",
    "clock jump",
    "logs with different clocks",
    "bound ORPHANS_MAX",
    "bound RECENT_MAX",
    "bound LEFT_IN_MAX",
    "second holder ACCEPTED",
    "second holder of an open transaction",
    "listener says COMMIT of what was rolled back",
    "listener says COMMIT of what is open",
    "listener forgets its fence",
    "normal end",
    "growth refused",
    "real fence asked",
    "real table read",
    "inbox saw duplicates",
)


def plan_surprises(cast: Cast) -> None:
    """Draw the surprises of a seed and plan them."""
    world, rng = cast.world, cast.surprise_rng
    if cast.silence_at_s is not None:
        kind, partition = rng.choice(LOGS), rng.randrange(cast.partition_count)
        world.at(cast.silence_at_s, lambda: _fall_silent(cast, kind, partition))
        world.at(cast.silence_at_s + rng.uniform(20, SILENCE_S + 8), lambda: _kill_checkers(cast))
    if rng.random() < 0.15:
        world.swarm.read_max = rng.choice([1, 2, 3])
        world.note("small reads")
    if rng.random() < 0.15:
        for _ in range(rng.choice([1, 2, 3])):
            world.at(rng.uniform(0, 20), lambda: _strew(cast))
    if rng.random() < 0.06:
        world.at(rng.uniform(2, 20), lambda: _write_newer(cast))
        world.at(rng.uniform(8, 29), lambda: upgrade(cast))
    if rng.random() < 0.2:
        for _ in range(rng.choice([1, 2, 4])):
            world.at(rng.uniform(0, 25), lambda: _jump(cast))
    if rng.random() < 0.1:
        world.at(rng.uniform(2, 20), lambda: _forge_decided(cast))
    if rng.random() < 0.2 and world.broker.profile.capabilities.clock_skew_max_s:
        world.broker.faults.half_skew_ms = rng.randrange(-SKEW_MAX_MS, SKEW_MAX_MS)
        world.note("logs with different clocks")
    if rng.random() < 0.1:
        world.at(rng.uniform(0, 25), lambda: _grow(cast))
    if rng.random() < 0.08:
        world.at(rng.uniform(0, 15), lambda: _look_elsewhere(cast))
    if rng.random() < 0.1:
        for _ in range(rng.choice([1, 3])):
            world.at(rng.uniform(2, 25), lambda: _forge_copy(cast))


def _fall_silent(cast: Cast, kind: LogKind, partition: int) -> None:
    """Let every reader of one log return nothing for a minute, without an error; other readers continue."""
    cast.world.silent_until_s[kind, partition] = cast.world.now_s + SILENCE_S


def _kill_checkers(cast: Cast) -> None:
    for process in list(cast.checkers):
        process.kill()


def _strew(cast: Cast) -> None:
    """Append bytes that are not a record: random bytes, or a record that was cut."""
    rng = cast.surprise_rng
    kind, partition = rng.choice(LOGS), rng.randrange(cast.partition_count)
    body, what = rng.randbytes(rng.randrange(0, 30)), "stray"
    records = cast.archive.records(kind, partition)
    whole = rng.choice(records).body if records else b""
    if whole and rng.random() < 0.5:
        body, what = whole[: rng.randrange(len(whole))], "cut"
    try:
        wire.decode_half(body) if kind is LogKind.HALF else wire.decode_ops(body)
    except NewerRecordError:
        return
    except WireFormatError:
        cast.world.note(f"{what} {kind.value}")
        _append(cast, kind, partition, body)


def _write_newer(cast: Cast) -> None:
    """Append a record of a newer producer or checker, which today's checker would judge wrongly."""
    if cast.is_upgraded:
        return
    rng = cast.surprise_rng
    kind, partition = rng.choice(LOGS), rng.randrange(cast.partition_count)
    if kind is LogKind.HALF:
        name = rng.randbytes(16)
        half = Half(
            wire.VERSION_READ_MAX + 1, name, GROUP, partition, 0, 0, 0, 0, 1, fenced=False, by="p:newer", messages=[]
        )
        body = wire.encode_half(half)
    else:
        newer_kind = max(OpKind) + 1
        op = [newer_kind, rng.randbytes(16), 0, "c:newer", 0]
        body = msgspec.msgpack.encode(["txo", wire.VERSION + rng.choice([0, 1]), [op]])
    cast.world.note(f"newer {kind.value}")
    position = _append(cast, kind, partition, body)
    cast.newer.setdefault((kind, partition), position)
    cast.has_met_newer = True


def _forge_decided(cast: Cast) -> None:
    """Append a half that no producer wrote, and that says that it is decided, under a claim and a place of the log."""
    rng = cast.surprise_rng
    partition = rng.randrange(cast.partition_count)
    ops = cast.archive.records(LogKind.OP, partition)
    claims = [op.token for record in ops for op in ops_in(record) if op.kind == OpKind.CLAIM]
    name, message = rng.randbytes(16), TargetMessage("forged", None, b"forged", {})
    half = Half(1, name, GROUP, partition, rng.choice([0, 1]), 0, 0, 0, 1, rng.random() < 0.5, "p:forger", [message])
    half.decided, half.token = OpKind.COMMIT, rng.choice(claims or [b""])
    half.proved_at = half.folded_to = rng.choice([record.position for record in ops] or [-1])
    cast.world.note("forged decided half")
    _append_forged(cast, half)


def _forge_copy(cast: Cast) -> None:
    """Append a copy of an undecided half that no checker made, and that keeps its messages back if it is believed."""
    rng = cast.surprise_rng
    pending = [journey for journey in cast.archive.journeys() if journey.is_pending and journey.half is not None]
    if not pending:
        return
    half = rng.choice(pending).half
    assert half is not None
    ops = cast.archive.records(LogKind.OP, half.partition)
    place = rng.choice([record.position for record in ops] or [-1])
    forged = msgspec.structs.replace(half, generation=half.generation + rng.choice([0, 1, 5]), proved_at=place)
    forged.folded_to = rng.choice([place, 2**60])
    if rng.random() < 0.5:
        forged.messages = []
    elif rng.random() < 0.5:
        forged.decided = OpKind.ROLLBACK
    else:
        forged.missing = list(range(len(forged.messages) - 1))
    cast.world.note("forged copy")
    _append_forged(cast, forged)


def _append_forged(cast: Cast, half: Half) -> None:
    cast.archive.forged.add(body := wire.encode_half(half))
    with cast.world.broker.lock:
        cast.world.broker.append(GROUP, LogKind.HALF, half.partition, body)


def _append(cast: Cast, kind: LogKind, partition: int, body: bytes) -> int:
    broker = cast.world.broker
    with broker.lock:
        broker.append(GROUP, kind, partition, body)
    if kind is LogKind.HALF:
        cast.strewn.append((partition, body))
    return cast.archive.records(kind, partition)[-1].position


def upgrade(cast: Cast) -> None:
    """Replace every checker by one that parks newer records; until then these records stop their partitions."""
    if cast.is_upgraded:
        return
    cast.is_upgraded = True
    cast.bounds.limits = dataclasses.replace(cast.bounds.limits, newer_records=NewerRecords.PARK)
    if cast.has_met_newer:
        cast.world.note("upgrade")
        is_immortal = any(process.is_immortal for process in cast.checkers)
        _kill_checkers(cast)
        start_checker(cast, is_immortal=is_immortal)


def _look_elsewhere(cast: Cast) -> None:
    """Start a checker whose fence uses another database, which has none of the rows; kill it after a while."""
    elsewhere = SimDatabase(cast.world, identity=bytes(15) + b"\2")
    process = start_checker(cast, database=elsewhere)
    cast.misled.append(process)
    cast.world.note("checker of another database")
    cast.world.at(cast.surprise_rng.uniform(2, 14), process.kill)


def _jump(cast: Cast) -> None:
    """Set the wall clock of a process, as an administrator or a time service does."""
    rng = cast.surprise_rng
    alive = [process for process in cast.processes if process.is_alive]
    if alive:
        process: Process = rng.choice(alive)
        process.clock.wall_offset_ms += rng.choice(JUMPS_MS)
        cast.world.note("clock jump")


def _grow(cast: Cast) -> None:
    """Open the group with one more partition than it has: the backend must refuse that and name the setting."""
    process = Process(cast.world, "grown")
    error = process.backend.ensure_group(GROUP, cast.partition_count + 1).exception()
    if isinstance(error, ConfigError) and error.key == "partition_count":
        cast.world.note("growth refused")
    else:
        cast.world.break_rule(f"a group of {cast.partition_count} partitions was opened with one more: {error!r}")
