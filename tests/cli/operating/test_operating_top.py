"""`txcore top`: once, as JSON, and live on a terminal."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from txcore.cli.operating.place import Address, Session
from txcore.cli.operating.screen import Screen
from txcore.cli.operating.top import View
from txcore.errors import BackendUnavailableError
from txcore.records import LogKind


def short(identity: str) -> str:
    """Return the short name of a transaction in tables."""
    return identity.replace("-", "")[-8:]


def test_once_shows_the_group_its_partitions_and_its_oldest(world):
    """The output fits 80 columns; without a terminal the command prints it once."""
    world.parked()
    identity = world.pending()
    for arguments in (["top", "--once"], ["top"]):
        ran = world(*arguments)
        assert (ran.status, ran.errors) == (0, "")
        assert ran.width <= 80
        lines = [line.split() for line in ran.output.splitlines()]
        assert [world.kit.group, "1"] in [line[:2] for line in lines]
        assert "parked: 1 CHECKS_EXHAUSTED" in ran.output
        assert short(identity) in ran.output
        assert "c:checker-" in ran.output


def test_for_programs(world):
    """The JSON of a group has every field that the view shows."""
    world.parked()
    world.pending()
    (group,) = world.json("top")
    assert (group["group"], group["pending"], group["parked"]) == (world.kit.group, 1, 1)
    assert group["parked_by_code"] == {"CHECKS_EXHAUSTED": 1}
    assert [each["partition"] for each in group["partitions"]] == [0, 1]
    assert sum(each["pending"] for each in group["partitions"]) == 1
    shown = {"group", "pending", "oldest_age_s", "parked", "parked_by_code", "partitions", "rates", "table"}
    assert shown == set(group)


@pytest.fixture
def view(world):
    """Return a function that opens a live view of the group, which the test polls."""
    with ExitStack() as stack:

        def made():
            screen = Screen(as_json=False)
            address = Address(world.broker_url, world.kit.group, "", "")
            operator = world.kit.operator()
            return View(stack, Session(address, "ann", screen, world.kit.backend, operator, None))

        yield made


def test_view_follows_new_and_finished_transactions(world, view):
    """The view counts pending, parked, resumed and finished transactions, and their rates."""
    before = world.parked()
    shown = view()
    assert (len(shown.pending()), len(shown.parked())) == (0, 1)
    assert shown.rates() is None
    pending = world.pending()
    shown.poll()
    assert [short(each.transaction_id.hex()) for each in shown.pending()] == [short(pending)]
    assert shown.rates()["halves"] > 0
    after = world.parked()
    shown.poll()
    assert len(shown.parked()) == 2
    assert world("resume", before, after, "--yes").status == 0
    shown.poll()
    assert (len(shown.pending()), len(shown.parked())) == (3, 0)
    assert world("rollback", before, after, pending, "--yes", "--why", "x", "--wait", "0").status == 0
    world.sweep_once_forced(before)
    world.sweep_once_forced(after)
    world.sweep_once_forced(pending)
    shown.poll()
    assert (len(shown.pending()), len(shown.parked())) == (0, 0)
    assert shown.rates()["rollbacks"] > 0


def test_transaction_parked_before_the_checkpoint_counts(world, view):
    """The view finds a parked transaction in the old logs; a finished one does not count."""
    over, still = world.parked(), world.parked()
    assert world("rollback", over, "--yes", "--why", "x", "--wait", "0").status == 0
    world.sweep_once_forced(over)
    left = {world.journey(each).partition: 3 for each in (over, still)}
    while any(count > 0 for count in left.values()):
        partition = world.journey(world.finished()).partition
        left[partition] = left.get(partition, 0) - 1
    shown = view()
    assert shown._older is not None
    assert [short(each.transaction_id.hex()) for each in shown.parked()] == [short(still)]


def test_a_broker_out_of_reach_is_shown_and_read_again(world, view):
    """The view shows the error, and reads the broker again at the next poll."""
    shown = view()
    reader = next(log.reader for log in shown._open._logs if log.kind is LogKind.HALF)
    read, trouble = reader.read, [BackendUnavailableError("the broker is gone")]

    def fail(count_max):
        if trouble:
            raise trouble.pop()
        return read(count_max)

    reader.read = fail
    shown.poll()
    assert shown.trouble == "the broker is gone"
    world.pending()
    shown.poll()
    assert (shown.trouble, len(shown.pending())) == ("", 1)
