"""The crash kit detects a lost transaction, a step that never comes, and a harness without other processes."""

from __future__ import annotations

import dataclasses

import pytest
from txcore_conformance.chaos_kills import kill_broker
from txcore_conformance.crash import (
    CHECKER_GROUPS,
    PRODUCER_GROUPS,
    CrashKit,
    Kill,
    Step,
    Tally,
    is_cause,
    kill_everywhere,
    main,
)
from txcore_conformance.failpoints import Failpoints
from txcore_conformance.memory import MemoryHarness
from txcore_sqlite.testing import SqliteHarness

from txcore.records import HalfRecord, Op, OpKind, Resolution
from txcore.runtime.commands import Each


@pytest.fixture
def crashes():
    harness = SqliteHarness()
    harness.start()
    with CrashKit(harness) as kit:
        yield kit
    harness.stop()


def test_a_kill_after_the_local_commit_loses_nothing(crashes):
    """The process dies before it publishes; the checker delivers the message, and the oracle finds nothing."""
    step, tally = Step("listener", "after local commit:1"), Tally()
    crashes.kill_at(step, tally)
    crashes.judge({step: tally})
    assert (1, 0, []) == (tally.kills, tally.missed, tally.violations)


def test_a_committed_transaction_that_is_in_no_log_is_named(crashes):
    """The oracle compares the database's transactions with the logs, with or without a half."""
    step, tally = Step("listener", "before half:1"), Tally()
    crashes.kill_at(step, tally)
    for committed in crashes._committed.values():
        committed.add(b"\x01" * 16)
    crashes.judge({step: tally})
    assert ["S8"] == sorted({violation.split()[0] for violation in tally.violations})


def test_a_step_that_never_comes_is_counted(crashes):
    """A failpoint that is not reached does not count as a kill."""
    tally = Tally()
    crashes.kill_at(Step("listener", "before nothing:1"), tally)
    assert (0, 1) == (tally.kills, tally.missed)


def test_items_of_one_batch_have_the_same_steps_as_single_items():
    """Time decides which ends share a batch, so a step must not depend on the items before it in a batch."""
    half = HalfRecord("group", 0, bytes(16), 0, b"", ())
    commit, rollback = (Resolution(half, Op(kind, bytes(16))) for kind in (OpKind.COMMIT, OpKind.ROLLBACK))

    def steps_of(*batches):
        """Return the steps of a flow that releases these batches."""
        failpoints, flow = Failpoints(), object()
        for batch in batches:
            failpoints.begin(flow, Each(batch, lambda _: None))
            failpoints.end(flow)
        return sorted(failpoints.steps)

    assert steps_of([commit, rollback]) == steps_of([commit], [rollback])


def test_a_broken_program_is_no_kill(crashes):
    """The kit reports a program that ends by itself with an error."""
    tally = Tally()
    crashes.kill_at(Step("no such program", "before half:1"), tally)
    assert (0, ["the program ended with status 1"]) == (tally.kills, tally.violations)


def test_kills_rotate_over_groups_and_report_progress():
    """Several dead processes may leave their halves in one group; one judgement of the group covers them all.

    A process that does not reach its step there, because some steps come by chance, is killed in its own group.
    """
    harness, said = SqliteHarness(), []
    harness.start()
    tallies = kill_everywhere(harness, ["listener", "checker"], cycles=60, say=said.append)
    harness.stop()
    assert (60, []) == (
        sum(tally.kills for tally in tallies.values()),
        [text for tally in tallies.values() for text in tally.violations],
    )
    assert "50 of 60 killed" in said
    count = PRODUCER_GROUPS + CHECKER_GROUPS + sum(tally.retries for tally in tallies.values())
    assert f"{count} of {count} groups judged" in said


def test_killed_owners_keep_the_order_of_a_key():
    """All messages of a group have one order key, and their first copies come in its order."""
    harness = SqliteHarness()
    harness.start()
    tallies = kill_everywhere(harness, ["checker"], cycles=12, release="owner", is_ordered=True)
    harness.stop()
    assert (12, []) == (
        sum(tally.kills for tally in tallies.values()),
        [text for tally in tallies.values() for text in tally.violations],
    )


def test_a_step_that_comes_by_chance_is_not_listed(crashes, monkeypatch):
    """A step is listed if each run without a kill reaches it."""
    listings = iter([["before half:1", "before call check:2", "after half:1"], ["after half:1", "before half:1"]])
    monkeypatch.setattr(crashes, "_listing", lambda program: next(listings))
    assert [Step("any", "before half:1"), Step("any", "after half:1")] == crashes.steps(["any"])


def test_another_kill_replaces_one_that_was_given_up(monkeypatch):
    """The requested number of processes die, also when a step never comes."""
    lost, reached = Step("listener", "before nothing:1"), Step("listener", "before half:1")
    monkeypatch.setattr(CrashKit, "steps", lambda self, programs: [lost, reached])
    harness = SqliteHarness()
    harness.start()
    tallies = kill_everywhere(harness, ["listener"], cycles=2)
    harness.stop()
    assert (2, 0) == (tallies[reached].kills, tallies[reached].missed)
    assert (0, 2) == (tallies[lost].kills, tallies[lost].missed)


def test_kills_end_when_no_step_comes(monkeypatch):
    """The kit gives up if no step comes."""
    monkeypatch.setattr(CrashKit, "steps", lambda self, programs: [Step("listener", "before nothing:1")])
    harness = SqliteHarness()
    harness.start()
    (tally,) = kill_everywhere(harness, ["listener"], cycles=1).values()
    harness.stop()
    assert (0, 2) == (tally.kills, tally.missed)


def test_only_the_kill_that_hit_a_transaction_is_a_cause():
    """A cause is a kill of the transaction's own producer, or of a checker while the transaction was undecided."""
    identity = (1_000).to_bytes(6, "big") + bytes(10)
    producer = Kill(Step("listener", "before half:1"), "group", 900, 1_100)
    checker = Kill(Step("checker", "before half:1"), "group", 2_000, 2_100)
    assert is_cause(producer, identity, None)
    assert not is_cause(dataclasses.replace(producer, started_ms=1_001), identity, None)
    assert is_cause(checker, identity, None)
    assert is_cause(checker, identity, 2_050)
    assert not is_cause(checker, identity, 1_999)


def test_a_harness_without_a_broker_process_has_none_to_kill():
    with pytest.raises(ValueError, match="no broker process"):
        kill_broker(SqliteHarness(), 1, print)


def test_a_harness_without_a_url_is_refused():
    """The kit refuses a broker in memory, because other processes cannot reach it."""
    with pytest.raises(ValueError, match="no other process"):
        CrashKit(MemoryHarness())


def test_the_command_line_lists_the_steps(capsys):
    """`--list` prints the steps at which the program would be killed, without a kill."""
    assert 0 == main(["--harness", "txcore_sqlite.testing:SqliteHarness", "--program", "database", "--list"])
    lines = capsys.readouterr().out.splitlines()
    assert "database: before half:1" in lines
    assert "database: during release COMMIT:1" in lines
    assert "database: after call commit:1" in lines
