"""Copies in the audit: a forged one changes no verdict, a proven one counts from the step on that reads its proof."""

from __future__ import annotations

import msgspec
from beds import found_in
from txcore_spark.anomalies import Written
from txcore_spark.job import Audit

import txcore
from txcore import wire
from txcore.audit.verdicts import Verdict
from txcore.ids import TransactionId
from txcore.operator.operator import Operator
from txcore.records import OpKind, TargetMessage

FREEZING_DONE = "reading the fence tables"
FORGED = [TargetMessage("orders.created", None, b"forged", {})]


def resume(bed, history):
    """Resume a parked half as an operator does, by a copy with its proof."""
    with txcore.connect(bed.url) as backend:
        Operator(backend, bed.group, by="ops").resume(TransactionId(history.transaction_id))


def forge(bed, history, **fields):
    """Append a copy that names the place of an op, where no proof of it is."""
    copy = msgspec.structs.replace(bed.half_of(history), **({"folded_to": 1, "proved_at": 1} | fields))
    bed.writer.write([(history.partition, Written("half", wire.encode_half(copy)))])


def verdicts(bed, manifest):
    """Return a run's verdicts by transaction."""
    return found_in(bed.store(), manifest)


def test_a_forged_copy_changes_no_verdict(engine, bed):
    """It neither hides what is parked nor lays anything to the charge of a transaction that ended well."""
    well, pending, parked, resumed = bed.write(None, None, Verdict.DISCARDED, Verdict.DISCARDED)
    forge(bed, well, generation=1, messages=FORGED)
    forge(bed, pending, decided=OpKind.ROLLBACK)
    forge(bed, parked, generation=1)
    resume(bed, resumed)
    found = verdicts(bed, bed.audit(engine).once())
    assert {parked.transaction_id: {"DISCARDED"}} == found


def test_steps_pass_forged_copies_over_and_find_the_proofs_of_earlier_steps(engine, bed):
    """A copy whose proof comes after the ops were frozen is judged again by the next step, which reads the proof."""
    forged, resumed, late = bed.write(Verdict.DISCARDED, Verdict.DISCARDED, Verdict.DISCARDED)
    audit = bed.audit(engine)
    assert {"DISCARDED": 3} == audit.incremental()["counts"]
    forge(bed, forged, generation=1)
    resume(bed, resumed)

    def resume_late(phase):
        if phase == FREEZING_DONE:
            resume(bed, late)

    racing = Audit(engine, bed.loaded(), bed.store(), say=resume_late)
    still = {each.transaction_id: {"DISCARDED"} for each in (forged, late)}
    assert still == verdicts(bed, racing.incremental())
    last = audit.incremental()
    assert {forged.transaction_id: {"DISCARDED"}} == verdicts(bed, last)
    assert verdicts(bed, audit.once()) == verdicts(bed, last)
    assert 2 == sum(each["pending"] for each in last["transactions"])
