"""PostgreSQL for real: an asynchronous replica is promoted, a point in time recovered, a dump restored."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.pool import NullPool
from txcore_conformance import servers
from txcore_conformance.kit import wait_until
from txcore_conformance.postgresql_copies import ARCHIVING, PhysicalCopy
from txcore_conformance.required import obtained

import txcore
from txcore.fence import FenceAnswer


@pytest.fixture
def archive():
    """A folder for archived write-ahead log that every user may enter and write; pytest's own folders are private."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


@pytest.fixture
def server(archive):
    """A PostgreSQL server that archives its log and that a standby can follow."""
    settings = ARCHIVING | {"archive_command": f"cp %p {archive}/%f"}
    made = obtained("postgresql", lambda: servers.postgresql(**settings))
    yield made
    made.remove()


def run_sql(url, *statements):
    """Run statements, each in a transaction of its own, and return the last one's value."""
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        results = [connection.exec_driver_sql(each) for each in statements]
        return results[-1].scalar() if results[-1].returns_rows else None


def test_promoted_asynchronous_replica_rolls_back_what_it_never_got(server, shop_on):
    """Commits that the replica missed are gone: undecided ones are rolled back, sent ones stay without an order."""
    shop = shop_on(server.url)
    with obtained("postgresql", lambda: PhysicalCopy(server.url)) as replica:
        replica.take()
        with shop.running() as service:
            kept = service.order("replicated, crashed", dies=True)
        replica.start()
        place = run_sql(server.url, "SELECT pg_current_wal_lsn()")
        has_all = f"SELECT pg_last_wal_replay_lsn() >= '{place}'"
        wait_until(lambda: run_sql(replica.url, has_all), "the replica's replay")
        replica.stop()
        with shop.running() as service:
            named = service.fence.identity().current
            service.order("missed")
            missed = service.order("missed, crashed", dies=True)
        server.kill()
        replica.start()
        replica.promote()
        with shop.running(replica.url) as service:
            assert service.fence.identity().current == named
            service.check()
            assert service.orders() == {"replicated, crashed"}
            assert (service.row(kept), service.row(missed)) == (FenceAnswer.COMMIT, FenceAnswer.ROLLBACK)
    assert sorted(shop.messages()) == ["missed", "replicated, crashed"]


def test_primary_that_outlives_a_failover_commits_orders_without_message(server, shop_on):
    """A former primary that still takes commits holds orders that checks on the new one roll back."""
    shop = shop_on(server.url)
    with obtained("postgresql", lambda: PhysicalCopy(server.url)) as replica:
        replica.take()
        replica.start()
        replica.promote()
        with shop.running() as service:
            service.order("on the former primary, crashed", dies=True)
        with shop.running(replica.url) as service:
            service.check()
            assert service.orders() == set()
        with shop.running() as service:
            assert service.orders() == {"on the former primary, crashed"}
    assert shop.messages() == []


def test_recovery_to_a_point_in_time_is_the_same_database(server, archive, shop_on):
    """A recovered server needs no adoption: it decides undecided halves, and rolls those after the point back."""
    shop = shop_on(server.url)
    with obtained("postgresql", lambda: PhysicalCopy(server.url, archive)) as recovered:
        recovered.take()
        with shop.running() as service:
            before = service.order("before, crashed", dies=True)
            run_sql(server.url, "SELECT pg_create_restore_point('monday')")
            after = service.order("after, crashed", dies=True)
            service.order("after")
        name = run_sql(server.url, "SELECT pg_walfile_name(pg_switch_wal())")
        wait_until((archive / name).exists, "the archiving of the log")
        server.stop()
        recovered.recover("monday")
        with shop.running(recovered.url) as service:
            wait_until(lambda: not run_sql(recovered.url, "SELECT pg_is_in_recovery()"), "the end of the recovery")
            service.check()
            assert service.orders() == {"before, crashed"}
            assert (service.row(before), service.row(after)) == (FenceAnswer.COMMIT, FenceAnswer.ROLLBACK)
    assert sorted(shop.messages()) == ["after", "before, crashed"]


def test_restored_dump_decides_nothing_until_it_is_adopted(postgresql, shop_on):
    """Tables that a dump made anew are a copy, which answers no check before `txcore fence adopt`."""
    shop = shop_on(postgresql.fresh_database())
    with shop.running() as service:
        crashed = service.order("before, crashed", dies=True)
    target = postgresql.fresh_database()
    place = [f"--dbname={make_url(each).set(drivername='postgresql')}" for each in (shop.database, target)]
    dump = subprocess.run(["pg_dump", place[0]], capture_output=True, check=True).stdout
    subprocess.run(["psql", "--quiet", place[1]], input=dump, stdout=subprocess.DEVNULL, check=True)
    with shop.running(target) as service:
        assert service.fence.identity().is_copy
        checker = txcore.Checker(service.backend, "shop", fence=service.fence)
        wait_until(lambda: checker.run_once().pending == 1, "the half's reading")
        checker.stop()
        assert shop.messages() == []
        assert service.row(crashed) is FenceAnswer.COMMIT
        service.fence.adopt(by="anna", reason="restored from the dump of Monday")
        service.check()
    assert shop.messages() == ["before, crashed"]
