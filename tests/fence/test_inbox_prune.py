"""The inbox refuses a message below its horizon that it does not remember: it neither drops nor repeats it."""

from __future__ import annotations

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError

from txcore.clock import SystemClock
from txcore.errors import ConfigError, InboxHorizonError, UsageError
from txcore.ids import IdFactory, id_text
from txcore.inbox import Inbox

DAY_S = 86_400


class Calendar(SystemClock):
    """A clock whose day the test chooses."""

    def __init__(self):
        super().__init__()
        self.days = 0

    def wall_ms(self):
        return super().wall_ms() + self.days * DAY_S * 1000


@pytest.fixture
def calendar():
    return Calendar()


@pytest.fixture
def inbox(world, calendar):
    made = Inbox(world.engine, table=f"inbox_{world.number}", clock=calendar)
    made.create()
    return made


@pytest.fixture
def message(world, calendar):
    """Return a function that makes a message whose transaction began on a given day."""

    def make(day=0, index=0):
        calendar.days, before = day, calendar.days
        identity = IdFactory(calendar, world.randomness).new()
        calendar.days = before
        return {"txcore-id": f"{id_text(identity)}:{index}", "txcore-group": "orders"}

    return make


def receive(world, inbox, headers, **options):
    with world.engine.begin() as connection, inbox.receive(connection, headers, **options) as first:
        return first


def remembered(world, inbox):
    with world.engine.connect() as connection:
        return connection.execute(text(f"SELECT count(*) FROM {inbox.table}")).scalar_one()


def test_prune_forgets_old_messages_and_no_others(world, inbox, calendar, message):
    """A prune deletes all messages of old transactions, so that the table holds only the kept ones."""
    old, new = message(0), message(8)
    for index in range(3):
        assert receive(world, inbox, {**old, "txcore-id": f"{old['txcore-id'][:-2]}:{index}"})
    assert receive(world, inbox, new)
    calendar.days = 10
    result = inbox.prune(keep_s=7 * DAY_S)
    assert (3, 0) == (result.deleted, result.kept)
    assert 1 == remembered(world, inbox)
    assert not receive(world, inbox, new)


def test_more_than_one_page_is_pruned(world, inbox, calendar, message):
    """A prune deletes more rows than one page holds."""
    with world.engine.begin() as connection:
        for _ in range(1_201):
            with inbox.receive(connection, message(0)) as first:
                assert first
    calendar.days = 10
    assert 1_201 == inbox.prune(keep_s=DAY_S).deleted
    assert 0 == remembered(world, inbox)


def test_a_repeated_message_that_was_forgotten_is_refused(world, inbox, calendar, message):
    """A repeated message whose row was pruned is refused, and no row is written."""
    old = message(0)
    assert receive(world, inbox, old)
    calendar.days = 10
    inbox.prune(keep_s=DAY_S)
    with pytest.raises(InboxHorizonError, match="it may have been received before") as raised:
        receive(world, inbox, old)
    assert id_text(raised.value.transaction_id) == old["txcore-id"][:-2]
    assert 0 == remembered(world, inbox)


def test_a_refused_message_is_not_remembered_by_a_program_that_still_commits(world, inbox, calendar, message):
    """A refused message is not remembered even if the program commits, so that a later receipt is the first."""
    calendar.days = 10
    inbox.prune(keep_s=DAY_S)
    old = message(0)
    with world.engine.begin() as connection:
        with pytest.raises(InboxHorizonError), inbox.receive(connection, old) as first:
            pytest.fail(f"received: {first}")
        world.add_order(connection, b"for a person")
    assert world.has_order(b"for a person")
    assert 0 == remembered(world, inbox)
    assert receive(world, inbox, old, old_is_first=True)


def test_old_message_is_received_when_the_caller_allows_it(world, inbox, calendar, message):
    """A caller may allow an old message, as of a half that was parked for weeks; its repetition is recognized."""
    calendar.days = 10
    inbox.prune(keep_s=DAY_S)
    old = message(0)
    assert receive(world, inbox, old, old_is_first=True)
    assert not receive(world, inbox, old)


def test_the_horizon_never_goes_down(world, inbox, calendar, message):
    """A later prune that keeps more does not lower the horizon."""
    calendar.days = 10
    inbox.prune(keep_s=DAY_S)
    inbox.prune(keep_s=30 * DAY_S)
    with pytest.raises(InboxHorizonError):
        receive(world, inbox, message(0))


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_transaction_older_than_the_prune_receives_nothing_twice(server_world, calendar, isolation):
    """A transaction whose snapshot shows the old horizon is refused by the inbox or by the database."""
    world = server_world
    inbox = Inbox(world.engine, table=f"inbox_{world.number}", clock=calendar)
    inbox.create()
    old = {"txcore-id": f"{id_text(world.new_id())}:0", "txcore-group": "orders"}
    assert receive(world, inbox, old)
    with world.new_engine(isolation_level=isolation).connect() as connection:
        connection.execute(text(f"SELECT count(*) FROM {world.orders_table}")).scalar_one()  # takes the snapshot
        calendar.days = 10
        inbox.prune(keep_s=DAY_S)
        with pytest.raises((InboxHorizonError, DBAPIError)), inbox.receive(connection, old) as first:
            pytest.fail(f"received again: {first}")
        connection.rollback()
    assert 0 == remembered(world, inbox)


def test_prune_just_before_the_row_is_written_receives_nothing_twice(world, inbox, calendar, message):
    """The inbox reads the horizon after its insert, so that it notices a row that was just pruned."""
    old, engine, pruned = message(0), world.new_engine(), []
    assert receive(world, inbox, old)
    calendar.days = 10

    @event.listens_for(engine, "before_cursor_execute")
    def prune_first(_connection, _cursor, statement, *_):
        if statement.startswith("INSERT") and not pruned:
            pruned.append(inbox.prune(keep_s=DAY_S))

    with engine.connect() as connection:
        with pytest.raises(InboxHorizonError), inbox.receive(connection, old) as first:
            pytest.fail(f"received again: {first}")
        connection.rollback()
    assert [1] == [each.deleted for each in pruned]
    assert 0 == remembered(world, inbox)


def test_invalid_time_is_refused(inbox):
    """A prune with `keep_s=0` is refused, because it would forget messages in progress."""
    with pytest.raises(ConfigError, match="keep_s=0"):
        inbox.prune(0)


def test_delayed_message_counts_from_the_time_at_which_it_was_due(world, inbox, calendar, message):
    """A message that waited for a year is new, is remembered like one of its due day, and is repeated once only."""
    due_ms = calendar.wall_ms() + 365 * DAY_S * 1000
    delayed = message() | {"txcore-due": str(due_ms).encode()}
    calendar.days = 366
    inbox.prune(keep_s=7 * DAY_S)
    assert [receive(world, inbox, delayed) for _ in range(2)] == [True, False]
    inbox.prune(keep_s=7 * DAY_S)
    assert (receive(world, inbox, delayed), remembered(world, inbox)) == (False, 1)
    calendar.days = 400
    inbox.prune(keep_s=7 * DAY_S)
    with pytest.raises(InboxHorizonError):
        receive(world, inbox, delayed)


def test_due_header_that_is_no_time_is_refused(world, inbox, message):
    """A damaged header is refused by name, before anything is recorded."""
    for due in ("tomorrow", "9" * 5_000):
        with pytest.raises(UsageError, match="txcore-due"):
            receive(world, inbox, message() | {"txcore-due": due})
    assert remembered(world, inbox) == 0
