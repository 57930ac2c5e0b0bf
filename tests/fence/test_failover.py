"""A failover of the fence's database: a promoted standby is the same database, so its checks answer."""

from __future__ import annotations

import pytest
import sqlalchemy
from txcore_conformance.postgresql_copies import PhysicalCopy
from txcore_conformance.required import obtained

import txcore
from txcore.fence import FenceAnswer


@pytest.mark.heavy
def test_promoted_standby_has_the_identity_of_the_primary(replicated):
    """A promoted standby keeps the primary's identity and answers COMMIT for earlier commits, with no adoption."""
    with obtained("postgresql", lambda: PhysicalCopy(replicated.url)) as standby:
        primary = sqlalchemy.create_engine(replicated.url)
        fence = txcore.SqlFence(primary)
        fence.create()
        named = fence.identity().current
        with primary.begin() as connection:
            fence.insert(connection, b"committed-before", "g")
        standby.take()
        standby.start()
        engine = sqlalchemy.create_engine(standby.url)
        promoted = txcore.SqlFence(engine)
        assert named == promoted.identity().current
        standby.promote()
        assert (named, False) == (promoted.identity().current, promoted.identity().is_copy)
        ids = [b"committed-before", b"never-committed!"]
        readings = promoted.check(ids, "g", dict.fromkeys(ids, named))
        assert [FenceAnswer.COMMIT, FenceAnswer.ROLLBACK] == [readings[each].answer for each in ids]
        engine.dispose()
        primary.dispose()
