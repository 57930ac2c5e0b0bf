"""A batch whose transactions differ in everything: each of its rules shows where it was applied to the wrong one."""

from __future__ import annotations

import pytest
from txcore_conformance import mixed_batch
from txcore_conformance.kit import Kit, Observed
from txcore_conformance.memory import MemoryHarness

COUNT = 300


@pytest.fixture
def kit():
    """A group on a broker in memory."""
    made = Kit(MemoryHarness())
    yield made
    made.close()


@pytest.mark.parametrize("made", [mixed_batch.mixed, mixed_batch.plain])
def test_each_has_its_own_end(kit, made):
    """Results, halves, ops and messages of a batch are those of its transactions sent one by one."""
    topics = [kit.topic(), kit.topic("other")]
    sent = made(topics, COUNT)
    mixed_batch.send(kit, sent)
    mixed_batch.judge_results(sent)
    mixed_batch.judge_logs(kit, topics, sent)


def test_each_has_its_own_end_under_observation(kit):
    """The same, with a plugin that observes the producer."""
    topics = [kit.topic(), kit.topic("other")]
    sent = mixed_batch.mixed(topics, COUNT, seed=2)
    mixed_batch.send(kit, sent, plugins=[Observed()])
    mixed_batch.judge_results(sent)
    mixed_batch.judge_logs(kit, topics, sent)
