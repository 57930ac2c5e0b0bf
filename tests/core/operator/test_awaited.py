"""The end of an operator's request, as the logs show it."""

from __future__ import annotations

from txcore_conformance.owners import Owners, name_of

from txcore import EndState
from txcore.ids import known_id
from txcore.operator.awaited import Awaited
from txcore.records import Forced, OpKind


def test_a_rollback_that_loses_to_a_committed_is_a_conflict_before_the_release():
    """A half may wait for its turn for long; the operator learns at once that it will be published."""
    owners = Owners(check_max=1)
    owners.owned(1, order_key=b"k", check_max=1)
    owners.owned(2, order_key=b"k", immunity_ms=5_000, check_max=1_000)
    owners.start()
    owners.run(3)
    awaited = Awaited.after(owners.operator.show(known_id(name_of(2))), OpKind.ROLLBACK)
    owners.op(OpKind.FORCE, 2, decision=OpKind.ROLLBACK, forced=Forced.YES, by="operator", reason="late")
    assert awaited.end_in(owners.operator.show(known_id(name_of(2))), "operator") is None
    owners.op(OpKind.COMMITTED, 2)
    owners.run(60)
    result = awaited.end_in(owners.operator.show(known_id(name_of(2))), "operator")
    assert (EndState.CONFLICT, True) == (result.state, "waits for its release" in str(result.error))
    assert ([], ["FORCE", "COMMITTED"]) == (owners.delivered(), owners.kinds(2))
