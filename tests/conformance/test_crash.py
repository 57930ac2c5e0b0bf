"""The crash kit notices what it must: a lost transaction, a step that never comes, a harness nobody else reaches."""

from __future__ import annotations

import pytest
from txcore_conformance.crash import CrashKit, Step, Tally, main
from txcore_conformance.memory import MemoryHarness
from txcore_sqlite.testing import SqliteHarness


@pytest.fixture
def crashes():
    harness = SqliteHarness()
    harness.start()
    with CrashKit(harness) as kit:
        yield kit
    harness.stop()


def test_a_kill_behind_the_local_commit_loses_nothing(crashes):
    """The process is dead before it could publish; the checker delivers, the oracle finds nothing."""
    step, tally = Step("listener", "after local commit:1"), Tally()
    crashes.kill_at(step, tally)
    crashes.judge({step: tally})
    assert (1, 0, []) == (tally.kills, tally.missed, tally.violations)


def test_a_committed_transaction_that_is_in_no_log_is_named(crashes):
    """What the database committed is compared with the logs, whether or not a half is there."""
    step, tally = Step("listener", "before half:1"), Tally()
    crashes.kill_at(step, tally)
    for committed in crashes._committed.values():
        committed.add(b"\x01" * 16)
    crashes.judge({step: tally})
    assert ["S8"] == sorted({violation.split()[0] for violation in tally.violations})


def test_a_step_that_never_comes_is_counted(crashes):
    """A failpoint that is not reached is no kill."""
    tally = Tally()
    crashes.kill_at(Step("listener", "before nothing:1"), tally)
    assert (0, 1) == (tally.kills, tally.missed)


def test_a_broken_program_is_no_kill(crashes):
    """A program that ends by itself with an error is reported."""
    tally = Tally()
    crashes.kill_at(Step("no such program", "before half:1"), tally)
    assert (0, ["the program ended with status 1"]) == (tally.kills, tally.violations)


def test_a_harness_without_a_url_is_refused():
    """Other processes cannot reach a broker in memory."""
    with pytest.raises(ValueError, match="no other process"):
        CrashKit(MemoryHarness())


def test_the_command_line_lists_the_steps(capsys):
    """`--list` shows where the program would be killed and kills nobody."""
    assert 0 == main(["--harness", "txcore_sqlite.testing:SqliteHarness", "--program", "database", "--list"])
    lines = capsys.readouterr().out.splitlines()
    assert "database: before half:1" in lines
    assert "database: during release COMMIT:1" in lines
    assert "database: after call commit:1" in lines
