"""Halves carry the identity of the database that decides, and no other database is read or written."""

from __future__ import annotations

import asyncio
import threading

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from txcore_conformance.kit import Observed

import txcore
from txcore import wire
from txcore.errors import BackendUnavailableError, ConfigError, UsageError, WrongDatabaseError
from txcore.fence import NO_DATABASE, FenceAnswer
from txcore.memory import KAFKA_LIKE, MemoryBackend, MemoryBroker
from txcore.records import LogKind, OpKind
from txcore.sqlfence import AsyncSqlFence, SqlFence
from txcore.sqlfence.identity import Adoption, Database

GROUP = "orders"
SOON = txcore.CheckPolicy(immunity_s=2.1, interval_s=0.1)


class Shop:
    """A producer on a broker in memory, and checkers with any fence."""

    def __init__(self) -> None:
        self.broker = MemoryBroker(KAFKA_LIKE)
        self.backend = MemoryBackend(self.broker)
        self.events = Observed()

    def producer(self, fence, **options):
        return txcore.TransactionProducer(
            self.backend, GROUP, fence=fence, partition_count=1, plugins=[self.events], **({"policy": SOON} | options)
        )

    def orphan(self, world, fence=None, body=b"tea"):
        """Return the id of an order that committed before its producer died."""
        transaction = self.producer(fence or world.fence).begin()
        transaction.publish(txcore.Message("t", body))
        with world.engine.connect() as connection:
            world.add_order(connection, transaction.transaction_id)
            transaction.prepare(connection)
            connection.commit()
        return transaction.transaction_id

    def halves(self):
        reader = self.backend.read(GROUP, LogKind.HALF, 0)
        try:
            return [wire.decode_half(record.body) for record in reader.read(100)]
        finally:
            reader.close()

    def check(self, fence, eventually, **options):
        """Run a checker until the fence was asked about each half, and return the last report."""
        asked = len(self.events.named("check.answered"))
        reports = []
        checker = txcore.Checker(
            self.backend,
            GROUP,
            fence=fence,
            policy=SOON,
            limits=txcore.Limits(poll_s=0.001),
            plugins=[self.events],
            **options,
        )

        def is_asked():
            reports.append(checker.run_once())
            return len(self.events.named("check.answered")) > asked

        eventually(is_asked)
        checker.stop()
        return reports[-1]

    @property
    def delivered(self):
        return [message.body for message in self.broker.topics.get("t", [])]


@pytest.fixture
def shop():
    return Shop()


def other_schema(world, server_name="other"):
    """Return a fence in another place of the same kind, with tables of its own."""
    fence = SqlFence(world.engine, table=f"{world.fence_table}_{server_name}")
    fence.create()
    return fence


def make_old(world):
    """Downgrade the fence's meta table to schema version 1, and keep its row."""
    meta = f"{world.fence_table}_meta"
    with world.engine.begin() as connection:
        for column in ("identity", "server", "adopted"):
            connection.execute(text(f"ALTER TABLE {meta} DROP COLUMN {column}"))
        connection.execute(text(f"UPDATE {meta} SET schema_version = 1"))
    world.engine.dispose()  # connections remember the identity
    return world.new_fence()


def test_half_names_its_database_and_another_one_decides_nothing(world, shop, eventually):
    """Another database gets no tombstone and gives an alert; the right one still answers COMMIT (wrong_database.py)."""
    foreign = other_schema(world)
    identity = shop.orphan(world)
    assert [half.database for half in shop.halves()] == [world.fence.identity().current]

    report = shop.check(foreign, eventually)
    assert (report.committed, report.rolled_back, report.parked, report.pending) == (0, 0, 0, 1)
    assert foreign.peek([identity])[identity].answer is FenceAnswer.ABSENT
    assert foreign.stats().states == {}
    reason = shop.events.named("check.wrong_database")[0]["reason"]
    assert world.fence.identity().current.hex() in reason
    assert "txcore fence adopt" in reason

    assert shop.check(world.fence, eventually).committed == 1
    assert shop.delivered == [b"tea"]


def test_listener_style_half_names_the_database_before_its_listener_runs(world, shop):
    """A listener that fences in another database than its half's is refused and rolled back."""
    foreign = other_schema(world)

    class Listener(txcore.TransactionListener):
        fence = world.fence

        def execute_local_transaction(self, message, arg):
            with world.engine.begin() as connection:
                txcore.current_transaction().fence(connection)
                world.add_order(connection, txcore.current_transaction().transaction_id)
            return txcore.LocalTransactionState.COMMIT

        def check_local_transaction(self, half):
            raise AssertionError

    good = shop.producer(world.fence, listener=Listener(), policy=None).send_message_in_transaction(
        txcore.Message("t", b"tea")
    )
    assert good.end.state is txcore.EndState.ACCEPTED
    assert good.error is None
    assert shop.halves()[-1].database == world.fence.identity().current

    producer = shop.producer(foreign, listener=Listener(), policy=None)
    producer._context.fence = _Elsewhere(foreign, world.fence)
    bad = producer.send_message_in_transaction(txcore.Message("t", b"milk"))
    assert bad.local_transaction_state is txcore.LocalTransactionState.UNKNOWN
    assert isinstance(bad.error, WrongDatabaseError)
    assert not world.has_order(bad.transaction_id)


class _NeverCalled(txcore.TransactionListener):
    """A listener of a producer that can send nothing."""

    def execute(self, transaction, message, arg):
        raise AssertionError

    def check_local_transaction(self, half):
        raise AssertionError


class _Elsewhere:
    """A fence of one database, which inserts rows into another as a listener's connection there would."""

    def __init__(self, own, theirs):
        self._own, self._theirs = own, theirs

    def __getattr__(self, name):
        return getattr(self._theirs if name == "insert" else self._own, name)


def test_override_against_another_database_is_refused(world):
    """An override is refused by a database that does not decide about the half."""
    foreign, identity = other_schema(world), world.committed()
    mine = world.fence.identity().current
    with pytest.raises(WrongDatabaseError, match="another database"):
        foreign.force(identity, GROUP, mine)
    assert foreign.stats().states == {}
    world.fence.force(identity, GROUP, mine)
    assert world.row(identity) is FenceAnswer.FORCED


def test_override_request_is_answered_with_the_reason(world, shop, eventually):
    """An operator gets the reason of a refused override; the half stays, and the right checker commits it."""
    foreign = other_schema(world)
    identity = shop.orphan(world)
    operator = txcore.Operator(shop.backend, GROUP, by="anna")
    operator.rollback(identity, "by mistake", override_fence=True)
    checker = txcore.Checker(shop.backend, GROUP, fence=foreign, policy=SOON, limits=txcore.Limits(poll_s=0.001))
    eventually(lambda: checker.run_once() and refusals(shop))
    checker.stop()
    assert "another database" in refusals(shop)[0]
    assert foreign.stats().states == {}
    assert shop.check(world.fence, eventually).committed == 1
    assert shop.delivered == [b"tea"]


def refusals(shop):
    """Return the owner's replies to forced decisions."""
    reader = shop.backend.read(GROUP, LogKind.OP, 0)
    try:
        ops = [op for record in reader.read(1_000) for op in wire.decode_ops(record.body)]
    finally:
        reader.close()
    return [op.reason for op in ops if op.kind == OpKind.FORCE and op.token]


def test_rollback_in_another_database_is_no_rollback(world, shop):
    """A producer with another database writes no tombstone there, and its end is UNKNOWN."""
    foreign = other_schema(world)
    transaction = shop.producer(world.fence, policy=None).begin()
    transaction.publish(txcore.Message("t", b"tea"))
    with world.engine.connect() as connection:
        transaction.prepare(connection)
        connection.commit()
    other = shop.producer(foreign).attach(transaction.handle())
    for end in (other.rollback, shop.producer(foreign).attach(transaction.handle()).commit):
        result = end()
        assert result.state is txcore.EndState.UNKNOWN
        assert isinstance(result.error, WrongDatabaseError)
    assert foreign.stats().states == {}
    assert shop.delivered == []
    assert transaction.commit().state is txcore.EndState.ACCEPTED


def test_tables_of_version_1_work_and_are_upgraded_in_place(world, shop, eventually):
    """The upgrade keeps rows and horizon; earlier halves carry no identity and are judged as before."""
    kept = world.committed()
    old = make_old(world)
    first = shop.orphan(world, old)
    assert [half.database for half in shop.halves()] == [b""]
    assert world.check(first, old) is FenceAnswer.COMMIT

    old.create()
    upgraded = old.identity()
    assert len(upgraded.current) == 16
    assert world.check(kept, old) is FenceAnswer.COMMIT
    old.create()
    assert old.identity() == upgraded

    second = shop.orphan(world, old, b"milk")
    assert [half.database for half in shop.halves()] == [b"", upgraded.current]
    while len(shop.delivered) < 2:
        shop.check(world.new_fence(), eventually)
    assert sorted(shop.delivered) == [b"milk", b"tea"]
    assert second != first


def test_producer_at_work_takes_the_upgrade_along(world, shop):
    """A producer that was made before the upgrade uses the new identity after it."""
    old = make_old(world)
    shop.orphan(world, old)
    world.new_fence(world.spare).create()
    with world.engine.begin() as connection:
        replacement = SqlFence(world.spare, table=world.fence_table).identity().current
        connection.execute(text("SELECT 1"))
    world.engine.dispose()
    shop.orphan(world, old, b"milk")
    assert [half.database for half in shop.halves()] == [b"", replacement]


@pytest.mark.parametrize("style", ["prepared", "database", "listener"])
def test_warm_connections_take_the_upgrade_along(world, shop, style):
    """A pooled connection that found no identity finds it after the upgrade (s13, s19)."""
    fence = make_old(world)
    engine = world.new_engine(pool_size=1, max_overflow=0) if world.kind != "sqlite" else world.engine

    class Listener(txcore.TransactionListener):
        def execute_local_transaction(self, message, arg):
            with engine.begin() as connection:
                txcore.current_transaction().fence(connection)
            return txcore.LocalTransactionState.COMMIT

        def check_local_transaction(self, half):
            raise AssertionError

    producer = shop.producer(fence, listener=Listener(), policy=None)

    def order(body):
        if style == "listener":
            assert producer.send_message_in_transaction(txcore.Message("t", body)).error is None
        elif style == "database":
            with producer.transaction(engine) as transaction:
                transaction.publish(txcore.Message("t", body))
        else:
            transaction = producer.begin()
            transaction.publish(txcore.Message("t", body))
            with engine.connect() as connection:
                transaction.prepare(connection)
                connection.commit()

    order(b"before")
    world.new_fence(world.spare).create()
    identity = world.new_fence(world.spare).identity().current
    order(b"after")
    before = NO_DATABASE if style == "listener" else b""
    assert [half.database for half in shop.halves()] == [before, identity]


def test_identity_that_changes_under_a_connection_is_read_again(world, shop):
    """The insert compares the identity that a pooled connection remembers, and reads a changed one again."""
    shop.orphan(world)
    meta, fresh = f"{world.fence_table}_meta", bytes(range(16))
    place = "CAST(:i AS uuid)" if world.kind == "postgresql" else ":i"
    value = fresh.hex() if world.kind == "postgresql" else fresh
    with world.spare.begin() as connection:
        connection.execute(text(f"UPDATE {meta} SET identity = {place}"), {"i": value})
    shop.orphan(world, body=b"milk")
    assert shop.halves()[-1].database == fresh


def test_copy_that_nobody_has_adopted_decides_for_no_former_database():
    """A copy without an adoption decides for no former database, although its list was copied as well."""
    former, original = b"f" * 16, b"o" * 16
    adopted = (Adoption(former.hex(), "", "ann", "moved"),)
    assert Database(original, original, "here", adopted).decides(former)
    copy = Database(original, b"c" * 16, "there", adopted)
    assert [False, False, True] == [copy.decides(each) for each in (former, original, copy.current)]


def test_former_identity_is_adopted_by_name(world, shop, eventually):
    """An operator adopts a former identity by name for new tables that replication has filled."""
    foreign = other_schema(world)
    identity = shop.orphan(world)
    former = world.fence.identity().current
    with world.engine.begin() as connection:
        connection.execute(
            text(
                f"INSERT INTO {foreign.table} (transaction_id, state, producer_group) "
                f"SELECT transaction_id, state, producer_group FROM {world.fence_table}"
            )
        )
    with pytest.raises(UsageError, match="nothing to adopt"):
        foreign.adopt("moved", "anna")
    with pytest.raises(UsageError, match="reason"):
        foreign.adopt(" ", "anna", former)
    before = foreign.identity().current
    database = foreign.adopt("moved to the new cluster", "anna", former)
    assert database.current == before
    assert [(each.identity, each.by, each.reason) for each in database.adopted] == [
        (former.hex(), "anna", "moved to the new cluster")
    ]
    assert shop.check(foreign, eventually).committed == 1
    assert foreign.peek([identity])[identity].answer is FenceAnswer.COMMIT


def test_copy_in_another_database_is_another_one_until_it_is_adopted(postgresql, shop, eventually):
    """A copy has the same meta row in another database (here by CREATE DATABASE … TEMPLATE, instead of a dump)."""
    identity = shop.orphan(postgresql)
    url = make_url(postgresql.url)
    admin = psycopg.connect(
        url.set(drivername="postgresql", database="postgres").render_as_string(hide_password=False), autocommit=True
    )
    for engine in postgresql.engines:
        engine.dispose()
    copy_name = f"{url.database}_copy"
    admin.execute(f'CREATE DATABASE "{copy_name}" TEMPLATE "{url.database}"')
    copy_engine = create_engine(url.set(database=copy_name))
    try:
        copy = postgresql.new_fence(copy_engine)
        seen = copy.identity()
        assert seen.is_copy
        assert seen.current != seen.stored == postgresql.fence.identity().current
        assert shop.check(copy, eventually).pending == 1
        assert shop.delivered == []

        adopted = copy.adopt("restored from the dump of Tuesday", "anna")
        assert not adopted.is_copy
        assert adopted.current == seen.current
        assert adopted.adopted[-1].identity == seen.stored.hex()
        assert shop.check(copy, eventually).committed == 1
        assert shop.delivered == [b"tea"]
        assert copy.identity() == adopted
        assert copy.peek([identity])[identity].answer is FenceAnswer.COMMIT
    finally:
        copy_engine.dispose()
        admin.execute(f'DROP DATABASE "{copy_name}" WITH (FORCE)')
        admin.close()


@pytest.mark.parametrize("mode", ["half", "table"])
def test_one_pool_in_front_of_a_schema_and_its_clone_names_the_right_one(postgresql, shop, eventually, mode):
    """A schema and its clone, with the same meta row on the same connection, are distinguished by their table (s2)."""
    names = ("tenant_a", "tenant_b")
    tables = [f"{postgresql.fence_table}{suffix}" for suffix in ("", "_meta", "_msg", "_slot", "_later")]
    with postgresql.engine.begin() as connection:
        for name in names:
            connection.execute(text(f"CREATE SCHEMA {name}"))
            for table in tables:
                connection.execute(text(f"CREATE TABLE {name}.{table} (LIKE {table} INCLUDING ALL)"))
            connection.execute(text(f"INSERT INTO {name}.{tables[1]} SELECT * FROM {tables[1]}"))
    first, second = (
        SqlFence(postgresql.new_engine(connect_args={"options": f"-c search_path={name}"}), table=tables[0])
        for name in names
    )
    pool = postgresql.new_engine(pool_size=1, max_overflow=0)
    producer, ids = shop.producer(first, mode=mode), []
    try:
        for name in (*names, names[0]):
            transaction = producer.begin()
            transaction.publish(txcore.Message("t", name.encode()))
            with pool.connect() as connection:
                connection.execute(text(f"SET search_path TO {name}"))
                connection.commit()
                transaction.prepare(connection)
                assert first.database_of(connection) == (first if name == names[0] else second).identity().current
                connection.commit()
            ids.append(transaction.transaction_id)
        if mode == "table":
            return
        mine, theirs = first.identity().current, second.identity().current
        assert mine != theirs
        assert [half.database for half in shop.halves()] == [mine, theirs, mine]
        eventually(lambda: shop.check(first, eventually).pending == 1)
        assert first.peek([ids[1]])[ids[1]].answer is FenceAnswer.ABSENT
        assert shop.check(second, eventually).committed == 1
        assert sorted(shop.delivered) == [b"tenant_a", b"tenant_a", b"tenant_b"]
    finally:
        for engine in (pool, first.engine, second.engine):
            engine.dispose()
        with postgresql.engine.begin() as connection:
            connection.execute(text("DROP SCHEMA tenant_a, tenant_b CASCADE"))


def test_checkers_connection_that_meets_a_copy_asks_which_server_that_is(postgresql):
    """A check on a connection that now leads to a restored copy is foreign, as after a change of the pooler."""
    meta = f"{postgresql.fence_table}_meta"
    fence = postgresql.new_fence(postgresql.new_engine(pool_size=1, max_overflow=0))
    mine, identity = fence.identity().current, postgresql.committed()
    with postgresql.spare.begin() as connection:
        connection.execute(text(f"ALTER TABLE {meta} RENAME TO {meta}_old"))
        connection.execute(text(f"CREATE TABLE {meta} (LIKE {meta}_old INCLUDING ALL)"))
        connection.execute(text(f"INSERT INTO {meta} SELECT * FROM {meta}_old"))
    assert fence.check([identity], GROUP, {identity: mine})[identity].is_foreign
    assert fence.identity().is_copy


def test_tables_get_one_identity_when_two_processes_create_them(server_world, threads, monkeypatch):
    """A second `create` in autocommit mode does not replace the identity that is in use (s7b)."""
    dialect = type(server_world.fence._dialect)
    real, slow_begun, fast_ended = dialect.add_columns, threading.Event(), threading.Event()

    def late(self, border, table, columns):
        real(self, border, table, columns)
        if not slow_begun.is_set():  # the first call
            slow_begun.set()
            if server_world.kind == "mariadb":  # PostgreSQL makes the other one wait
                assert fast_ended.wait(10)

    make_old(server_world)
    monkeypatch.setattr(dialect, "add_columns", late)
    fences = [server_world.new_fence(server_world.new_engine(isolation_level="AUTOCOMMIT")) for _ in range(2)]
    slow = threads.submit(fences[0].create)
    assert slow_begun.wait(10)
    fences[1].create()
    identity = fences[1].identity().current
    fast_ended.set()
    slow.result(10)
    assert fences[0].identity().current == identity == server_world.new_fence().identity().current


def test_upgrade_gives_up_soon_before_an_open_transaction(server_world, threads):
    """An upgrade that meets an open transaction gives up soon, changes nothing, and can be repeated (s1)."""
    old = make_old(server_world)
    held = old.begin(None, server_world.new_id(), GROUP)
    engine = server_world.new_engine(pool_size=1, max_overflow=0)
    upgrading = threads.submit(server_world.new_fence(engine).create)
    try:
        with pytest.raises(BackendUnavailableError, match=r"open transaction.*run `txcore fence create` again"):
            upgrading.result(20)
        identity = server_world.new_id()
        old.commit(old.begin(None, identity, GROUP))
        assert server_world.check(identity, old) is FenceAnswer.COMMIT
        assert old.identity().current == b""
        if server_world.kind == "mariadb":
            with engine.connect() as connection:
                assert connection.execute(text("SELECT @@lock_wait_timeout = @@GLOBAL.lock_wait_timeout")).scalar_one()
    finally:
        old.commit(held)
    old.create()
    assert len(old.identity().current) == 16


@pytest.fixture
def weak_fence(postgresql):
    """The fence of a role that may not call `pg_control_system()`."""
    with postgresql.engine.begin() as connection:
        connection.execute(text("CREATE ROLE weak LOGIN"))
        connection.execute(text("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC"))
        for suffix in ("", "_meta"):
            connection.execute(text(f"GRANT SELECT, INSERT, UPDATE ON {postgresql.fence_table}{suffix} TO weak"))
    engine = postgresql.new_engine(connect_args={"options": "-c role=weak"})
    yield postgresql.new_fence(engine)
    engine.dispose()
    with postgresql.engine.begin() as connection:
        connection.execute(text("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC"))
        connection.execute(text("DROP OWNED BY weak"))
        connection.execute(text("DROP ROLE weak"))


def test_role_that_may_not_ask_for_the_server_takes_the_stored_identity(postgresql, weak_fence):
    """A role without `pg_control_system()` uses the stored identity; only copies are not recognized."""
    seen = weak_fence.identity()
    assert seen.server == ""
    assert seen.current == postgresql.fence.identity().current
    assert postgresql.check(postgresql.committed(), weak_fence) is FenceAnswer.COMMIT


def test_role_that_may_not_ask_for_the_server_adopts_and_keeps_what_is_known_of_it(postgresql, weak_fence):
    """An adoption by a role without `pg_control_system()` keeps the server in the meta row (s18)."""
    before = postgresql.fence.identity()
    with pytest.raises(UsageError, match="pg_control_system"):
        weak_fence.adopt("moved", "anna")
    adopted = weak_fence.adopt("moved by replication", "anna", former=bytes([7]) * 16)
    assert (adopted.current, adopted.adopted[-1].identity) == (before.current, "07" * 16)
    assert adopted.decides(bytes([7]) * 16)
    with postgresql.spare.connect() as connection:
        kept = connection.execute(text(f"SELECT server FROM {postgresql.fence_table}_meta")).scalar_one()
    assert kept == before.server != ""


def test_asynchronous_fence_knows_its_database_too(sqlite):
    """An asynchronous fence compares the identity of its database like a blocking one."""
    foreign = other_schema(sqlite)

    async def run():
        engine = create_async_engine(sqlite.url.replace("sqlite:", "sqlite+aiosqlite:"))
        try:
            fence = AsyncSqlFence(engine, table=sqlite.fence_table)
            assert fence.known_database() is None
            mine = await fence.read_database()
            assert mine == sqlite.fence.identity().current == fence.known_database()
            identity = sqlite.new_id()
            connection = await fence.begin(None, identity, GROUP)
            assert fence.database_of(connection) == mine
            await fence.commit(connection)
            elsewhere = foreign.identity().current
            readings = await fence.check([identity], GROUP, {identity: elsewhere})
            assert readings[identity].is_foreign
            assert (await fence.check([identity], GROUP, {identity: mine}))[identity].answer is FenceAnswer.COMMIT
            with pytest.raises(WrongDatabaseError):
                await fence.force(identity, GROUP, elsewhere)
        finally:
            await engine.dispose()

    asyncio.run(run())


def test_zero_identity_matches_every_database(world):
    """A listener-style half with an identity of zeros, from a fence that knows none, matches every database."""
    identity = world.new_id()
    assert world.fence.check([identity], GROUP, {identity: NO_DATABASE})[identity].answer is FenceAnswer.ROLLBACK


def test_checker_refuses_an_asynchronous_fence_without_its_loop(tmp_path, shop):
    """A checker refuses an asynchronous fence without its event loop, because it could not await the answers."""
    fence = AsyncSqlFence(create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/a.db"))
    with pytest.raises(ConfigError, match="event_loop") as refused:
        txcore.Checker(shop.backend, GROUP, fence=fence)
    assert refused.value.key == "fence"


def test_checker_decides_with_an_asynchronous_fence_on_its_loop(sqlite, shop, eventually):
    """A checker awaits an asynchronous fence's answers on the loop in which the engine works."""
    shop.orphan(sqlite)

    async def run():
        engine = create_async_engine(sqlite.url.replace("sqlite:", "sqlite+aiosqlite:"))
        fence = AsyncSqlFence(engine, table=sqlite.fence_table)
        loop = asyncio.get_running_loop()
        report = await asyncio.to_thread(shop.check, fence, eventually, event_loop=loop)
        await engine.dispose()
        return report

    assert asyncio.run(run()).committed == 1
    assert shop.delivered == [b"tea"]


def test_unreachable_database_sends_nothing_in_the_listener_style(tmp_path, shop):
    """A listener-style half is not sent if the database, which it must name, cannot be reached."""
    fence = SqlFence(create_engine(f"sqlite:///{tmp_path}/missing/a.db"))
    producer = shop.producer(fence, listener=_NeverCalled())
    with pytest.raises(txcore.NotSentError, match="nothing was sent"):
        producer.send_message_in_transaction(txcore.Message("t", b"tea"))
    (result,) = producer.send_many([(txcore.Message("t", b"tea"), None)])
    assert isinstance(result.error, txcore.NotSentError)
    with pytest.raises(BackendUnavailableError):
        fence.identity()
