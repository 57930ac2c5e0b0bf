"""Unexpected events are played and judged: silent logs, strays, newer records, wrong clocks, small bounds."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import pytest
from txcore_conformance.checkpoint_bounds import judge_checkpoint
from txcore_conformance.sim import archive, judgement, play, surprises
from txcore_conformance.sim.mutants import MUTANTS
from txcore_conformance.sim.real import RealDatabase

from txcore.records import LogKind


def test_each_surprise_is_met_within_some_hundred_seeds():
    """Each kind of surprise happens within 600 seeds."""
    met: Counter[str] = Counter()
    for seed in range(600):
        met.update(play.run(seed).sometimes)
        if all(met[name] for name in surprises.PATHS):
            return
    assert [] == [name for name in surprises.PATHS if not met[name]]


def test_a_takeover_excuses_only_what_was_undecided_then():
    """Without immunity, the judge finds a second delivery that no cause in the history excuses (S6)."""
    with MUTANTS["immunity_ignored"].patch():
        found = [text for seed in range(1, 200, 4) for text in play.run(seed, may_be_real=False).violations]
    assert any(text.startswith("S6") for text in found)


def test_the_archive_judges_checkpoints_as_whole_logs_do():
    """The archive, which decodes each record once, judges checkpoints as the whole logs do."""
    judged = []
    kept = archive.Archive.judge_checkpoint

    def both(self, partition, checkpoint, op_read):
        halves, ops = (self.records(kind, partition) for kind in (LogKind.HALF, LogKind.OP))
        if op_read is not None:
            ops = [record for record in ops if record.position <= op_read]
        text = kept(self, partition, checkpoint, op_read)
        assert text == judge_checkpoint(checkpoint, halves, ops)
        judged.append(text)
        return text

    with mock.patch.object(archive.Archive, "judge_checkpoint", both):
        for seed in range(40):
            play.run(seed)
    assert len(judged) > 100


def test_the_real_fence_table_and_inbox_say_what_their_twins_say():
    """The real fence table and inbox agree with their simulated twins in each seed."""
    with mock.patch.object(play, "REAL_SHARE", 1.0):
        results = [play.run(seed) for seed in range(60)]
    assert {} == {result.seed: result.violations for result in results if result.violations}
    assert any("real fence asked" in result.sometimes for result in results)


@pytest.mark.parametrize("name", ["check", "commit", "prune"])
def test_a_real_fence_that_does_otherwise_is_noticed(name):
    """A real fence that leaves out a check, a commit or a prune is noticed within 60 seeds."""
    broken = {"check": lambda self, identity: self.fence.peek([identity])[identity]}.get(name, lambda *_: None)
    with mock.patch.object(play, "REAL_SHARE", 1.0), mock.patch.object(RealDatabase, name, broken):
        assert any(play.run(seed).violations for seed in range(60))


def test_a_group_that_grew_is_noticed():
    """A broker that opens a group with another number of partitions breaks a rule."""
    with mock.patch("txcore.memory.broker.MemoryBroker.ensure_group", return_value=1):
        cast = play._stage(0, may_be_real=False)
        surprises._grow(cast)
    assert cast.world.violations


def test_strange_bytes_that_are_never_parked_are_noticed():
    """The judge reports bytes that are no record and were never parked."""
    cast = play._stage(0, may_be_real=False)
    cast.strewn.append((0, b"strange"))
    judgement._judge_strewn(cast)
    assert "never parked" in cast.world.violations[0]
