"""The simulator's judge excuses a transaction only where lost records leave no reader a better answer."""

from __future__ import annotations

from unittest import mock

import msgspec
import pytest
from txcore_conformance.sim import play
from txcore_conformance.sim.cast import GROUP
from txcore_conformance.sim.excuses import is_excused, is_listed

from txcore import wire
from txcore.checker.copy_proofs import plain_of
from txcore.records import Half, LogKind, Op, OpKind, ParkCode, Parked, TargetMessage

IDENTITY, OTHER = bytes(15) + b"\1", bytes(15) + b"\2"
OLD, NEW = b"o" * 16, b"n" * 16


class Logs:
    """The first partition of a seed's group on a broker without atomic releases, written by hand."""

    def __init__(self):
        self.cast = play._stage(1, may_be_real=False)

    def append(self, kind, body):
        broker = self.cast.world.broker
        with broker.lock:
            broker.append(GROUP, kind, 0, body)
        return broker.log(GROUP, kind, 0)[-1].position

    def half(self, half):
        self.append(LogKind.HALF, wire.encode_half(half))

    def op(self, kind, identity=IDENTITY, token=b"", **fields):
        return self.append(LogKind.OP, wire.encode_ops([Op(kind, identity, 0, "c:1", 0, token, **fields)]))

    def prove(self, copy):
        return msgspec.structs.replace(copy, proved_at=self.op(OpKind.TICK, wire.proof_of(copy)))

    def park(self, identity, code, half, token):
        parked = Parked(wire.VERSION, identity, 0, code, "", 0, "c:1", 0, token, wire.encode_half(half))
        self.append(LogKind.PARKED, wire.encode_parked(parked))
        self.op(OpKind.DISCARD, identity, token, reason=code)

    def eat_ops(self, first):
        """Let retention remove the ops before index *first*."""
        with mock.patch.object(self.cast.world.rng, "choice", lambda records: records[first]):
            play._eat_ops(self.cast)

    @property
    def journey(self):
        return self.cast.archive.journey(IDENTITY)


def half_of(identity=IDENTITY):
    message = TargetMessage("t0", None, b"body", {})
    return Half(wire.VERSION, identity, GROUP, 0, 0, 0, 0, 0, 1, fenced=False, by="p:1", messages=[message])


def copy_of(half):
    return msgspec.structs.replace(half, generation=1, age_ms=5)


@pytest.fixture
def logs():
    return Logs()


@pytest.mark.parametrize("seed", [52_009_049, 53_005_339, 56_002_582])
def test_what_no_reader_can_know_of_lost_records_breaks_no_rule(seed):
    """A claim or a proof that retention removed too early, and a proof that the broker lost, leave a half parked."""
    assert play.run(seed).violations == ()


def test_a_copy_whose_proof_the_broker_lost_is_excused(logs):
    """A resumed half is not judged once the proof of its copy is lost; no lost record has its id."""
    logs.half(half_of())
    logs.half(half_of(OTHER))
    copy = logs.prove(copy_of(half_of()))
    with mock.patch.object(logs.cast.world.rng, "randrange", return_value=1):
        play._lose_tail(logs.cast)
    assert not is_excused(logs.cast, logs.journey)
    logs.half(copy)
    assert is_excused(logs.cast, logs.journey)


def test_a_copy_whose_proof_is_kept_is_judged(logs):
    """A copy is judged where the broker lost another record than its proof."""
    logs.half(half_of())
    logs.half(half_of(OTHER))
    logs.half(logs.prove(copy_of(half_of())))
    logs.half(half_of(OTHER))
    logs.op(OpKind.NUDGE, OTHER)
    with mock.patch.object(logs.cast.world.rng, "randrange", return_value=1):
        play._lose_tail(logs.cast)
    assert not is_excused(logs.cast, logs.journey)


@pytest.mark.parametrize(("first", "is_at_rest"), [(1, False), (2, True)])
def test_a_void_discard_parks_only_where_its_claim_is_gone(logs, first, is_at_rest):
    """Whether an outdated owner's DISCARD parks depends on whether retention has left the newer owner's CLAIM."""
    logs.half(half_of())
    logs.op(OpKind.CLAIM, OLD, OLD)
    logs.op(OpKind.CLAIM, NEW, NEW)
    logs.park(IDENTITY, ParkCode.UNDELIVERABLE, half_of(), OLD)
    assert logs.journey.is_pending
    assert not is_listed(logs.cast, logs.journey)
    logs.eat_ops(first)
    assert (is_listed(logs.cast, logs.journey), play._is_at_rest(logs.cast)) == (is_at_rest, is_at_rest)


def test_a_copy_whose_proof_retention_removed_is_at_rest_once_its_bytes_are_parked(logs):
    """Such a copy is undecided until operators find its bytes on the list of parked halves."""
    copy = logs.prove(copy_of(half_of()))
    logs.half(copy)
    logs.op(OpKind.CLAIM, NEW, NEW)
    logs.eat_ops(1)
    assert not play._is_at_rest(logs.cast)
    logs.park(OTHER, ParkCode.POISON, plain_of(copy), NEW)
    assert play._is_at_rest(logs.cast)
