"""One tally per transaction, computed from rows by one grouping on the 16-byte id with numeric aggregates only.

Only the few transactions that are not plainly correct (`txcore_spark.screening`) get a tally. The grouping gives sums;
`derived` turns them into the columns of `txcore.audit.verdicts.Tally`. Some transactions need more than sums: several
copies of a half with several messages, a message that was bridged, a DISCARD on either side of a DECIDED. `careful`
reads their rows again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from txcore.audit.verdicts import FAR, SENT, STATES
from txcore.records import DECIDING_KINDS, MARK_KINDS, Forced, OpKind, ParkCode
from txcore_spark import digests
from txcore_spark import expressions as F
from txcore_spark.expressions import Column
from txcore_spark.frames import Frame
from txcore_spark.rows import PARK_NUMBERS, Kind

INDEX_MAX: Final = 62
"""First index of a target without a bit of its own; a transaction with such a target needs a second look."""
LOG: Final = ("source", "partition")
HASH_MIN: Final = -(1 << 63)
HASH_MAX: Final = (1 << 63) - 1
"""Highest hash; hashes use all 64 bits."""
SUMMED: Final = (
    "tx", "bucket", "kind", "code", "backend", "group", "place", "ts_ms", "generation", "index", "count", "hash",
    "decision", "flags", "deadline_ms", "digest_high", "digest_low",
)  # fmt: skip
"""Columns of a row on which a tally rests."""
EXHAUSTED: Final = PARK_NUMBERS[ParkCode.CHECKS_EXHAUSTED]
UNDELIVERABLE: Final = PARK_NUMBERS[ParkCode.UNDELIVERABLE]
POISON: Final = (PARK_NUMBERS[ParkCode.POISON], PARK_NUMBERS[ParkCode.LOST])
"""Codes of parked records that hold no half."""


class Sum(NamedTuple):
    """One column of the grouping: the value that a row adds, and the aggregate that combines the rows."""

    name: str
    of_row: Column
    merge: str  #: sum, try_sum, min, max or bit_or
    none: int  #: value that means "no row"


def sums_of(backend_count: int) -> list[Sum]:
    """Return the columns of the grouping for this number of brokers."""
    return [*_target_sums(backend_count), *_half_sums(), *_op_sums(), *_row_sums()]


def _is(kind: Kind) -> Column:
    return F.col("kind") == int(kind)


def _is_op(*kinds: OpKind) -> Column:
    return _is(Kind.OP) & F.col("code").isin([int(kind) for kind in kinds])


def _short_hash() -> Column:
    """Return 47 bits of a hash: their sum does not overflow before 65,536 messages.

    With more of them the sum is `none`, and the rows get a second look: no half declares as many.
    """
    return F.col("hash").bits_and((1 << 47) - 1)


def _count(name: str, holds: Column) -> Sum:
    return Sum(name, F.when(holds, F.lit(1).cast("bigint")), "sum", 0)


def _high(name: str, holds: Column, value: Column, none: int = 0) -> Sum:
    return Sum(name, F.when(holds, value.cast("bigint")), "max", none)


def _low(name: str, holds: Column, value: Column, none: int = FAR) -> Sum:
    return Sum(name, F.when(holds, value.cast("bigint")), "min", none)


def _target_sums(backend_count: int) -> list[Sum]:
    is_target = _is(Kind.TARGET)
    found = [
        Sum("target_hash", F.when(is_target, _short_hash()), "try_sum", 0),
        _low("target_hash_min", is_target, F.col("hash"), HASH_MAX),
        _high("target_hash_max", is_target, F.col("hash"), HASH_MIN),
        _high("index_max", is_target, F.col("index"), -1),
        _high("target_ms", is_target, F.col("ts_ms")),
    ]
    bit = F.bit("index", INDEX_MAX)
    for number in range(backend_count):
        is_here = is_target & (F.col("backend") == number)
        found.append(_count(f"targets_{number}", is_here))
        found.append(Sum(f"mask_{number}", F.when(is_here & (F.col("index") < INDEX_MAX), bit), "bit_or", 0))
    return found


def _half_sums() -> list[Sum]:
    is_half = _is(Kind.HALF)
    return [
        _high("home", is_half, F.col("backend"), -1),
        _count("halves", is_half & (F.col("index") == 0)),
        _count("half_rows", is_half),
        _high("generation", is_half, F.col("generation"), -1),
        _high("declared", is_half, F.col("count")),
        _high("fenced", is_half, F.col("flags").bits_and(1)),
        _high("unseen", is_half, F.col("flags").bits_and(2)),
        _high("deadline_ms", is_half, F.col("deadline_ms")),
        _low("half_ms", is_half, F.col("ts_ms")),
        Sum("half_hash", F.when(is_half, _short_hash()), "try_sum", 0),
        _low("half_hash_min", is_half, F.col("hash"), HASH_MAX),
    ]


def _op_sums() -> list[Sum]:
    place, ts, generation = F.col("place"), F.col("ts_ms"), F.col("generation")
    is_commit, is_rollback = _is_op(OpKind.COMMIT, OpKind.RELEASED), _is_op(OpKind.ROLLBACK)
    is_committed = _is_op(OpKind.COMMITTED)
    is_discard, is_half = _is_op(OpKind.DISCARD), _is(Kind.HALF)
    is_exhausted = is_discard & (F.col("decision") == EXHAUSTED)
    is_other = is_discard & (F.col("decision") != EXHAUSTED)
    is_decided = (is_half | is_committed | _is_op(OpKind.DECIDED)) & (F.col("decision") > 0)
    is_override = _is_op(*DECIDING_KINDS, OpKind.DECIDED) & (F.col("flags") == int(Forced.OVERRIDE))
    return [
        _high("op_home", _is(Kind.OP), F.col("backend"), -1),
        _count("commits", is_commit),
        _count("rollbacks", is_rollback),
        _count("committed", is_committed),
        _low("first_commit", is_commit | is_committed, place),
        _low("first_rollback", is_rollback, place),
        _low("op_ms", is_commit | is_committed | is_rollback, ts),
        _low("decided_at", is_decided, F.when(is_half, F.lit(0)).otherwise(place) * 4 + F.col("decision")),
        _high("discarded_other", is_other, generation, -1),
        _high("exhausted", is_exhausted, generation, -1),
        _low("exhausted_first", is_exhausted, place),
        _high("exhausted_last", is_exhausted, place, -1),
        _high("exhausted_ms", is_exhausted, ts),
        _high("other_ms", is_other, ts),
        _high("undeliverable", is_discard & (F.col("decision") == UNDELIVERABLE), generation, -1),
        _count("overrides", is_override),
        _count("forces", _is_op(OpKind.FORCE)),
    ]


def _row_sums() -> list[Sum]:
    is_row, is_parked = _is(Kind.ROW), _is(Kind.PARKED)
    has_group = _is(Kind.HALF) | _is(Kind.OP) | _is(Kind.TARGET) | is_row
    return [
        _high("group", has_group, F.col("group"), -1),
        _count("parked", is_parked),
        _count("poison", is_parked & F.col("code").isin(*POISON)),
        _high("row_read", is_row, F.col("place") * STATES + F.col("code")),
        _high("row_early", is_row & F.col("code").isin(1, SENT), F.col("flags")),
        *_digest_sums("row", is_row),
        *_digest_sums("half", _is(Kind.HALF)),
    ]


def _digest_sums(name: str, holds: Column) -> list[Sum]:
    """Return the columns that say whether rows have digests, and whether these are the same."""
    found = [_count(f"{name}_digests", holds & F.col("digest_high").is_not_null())]
    for part in ("high", "low"):
        value = F.col(f"digest_{part}")
        found.append(_low(f"{name}_{part}", holds, value, HASH_MAX))
        found.append(_high(f"{name}_{part}_max", holds, value, HASH_MIN))
    return found


_MERGES: Final = {"sum": F.sum_of, "try_sum": F.try_sum_of, "min": F.min_of, "max": F.max_of, "bit_or": F.bit_or_of}


def owned(rows: Frame, truncated: Sequence[tuple[int, int]] = ()) -> Frame:
    """Return *rows* without marks, and without the void DISCARD and DECIDED ops: those not under the token in force.

    Args:
        truncated: Op logs (source, partition) whose beginning is gone: there the token before the first CLAIM is
            not known, and these ops count.
    """
    is_owned = (F.col("kind") == int(Kind.OP)) & F.col("code").isin(int(OpKind.DISCARD), int(OpKind.DECIDED))
    is_claim = (F.col("kind") == int(Kind.OP)) & (F.col("code") == int(OpKind.CLAIM))
    claims = rows.where(is_claim).select(
        "source",
        "partition",
        F.col("place").alias("from"),
        F.col("token").alias("in_force"),
        F.following("place", FAR, within=LOG, order="place").alias("to"),
    )
    # Before the first CLAIM the empty token is in force; the token is unknown where the beginning is gone.
    first = rows.where(is_claim).aggregate(LOG, F.min_of("place").alias("first_claim"))
    held = rows.where(is_owned).join(claims.small(), LOG, "left").join(first.small(), LOG, "left")
    is_before = F.col("place") < F.coalesce(F.col("first_claim"), F.lit(FAR))
    is_unknown = F.lit(False)
    for source, partition in truncated:
        is_unknown = is_unknown | ((F.col("source") == source) & (F.col("partition") == partition))
    is_under = (F.col("place") > F.col("from")) & (F.col("place") < F.col("to")) & (F.col("token") == F.col("in_force"))
    in_force = (
        held.where(is_under | (is_before & (is_unknown | (F.col("token") == 0))))
        .select(*rows.columns)
        .one_of_each([*LOG, "place"])
    )
    return rows.where(~is_owned & ~_is_op(*MARK_KINDS)).union(in_force)


def summed(rows: Frame, sums: Sequence[Sum]) -> Frame:
    """Return one line of sums per transaction."""
    # Rows are a third of the size of sums, and few rows of a transaction meet before the exchange: rows are exchanged.
    facts = rows.where(F.col("kind") < int(Kind.COVER)).select(*SUMMED).spread("tx")
    prepared = facts.select("tx", "bucket", *(each.of_row.alias(each.name) for each in sums))
    columns = [F.coalesce(_MERGES[each.merge](F.col(each.name)), F.lit(each.none)).alias(each.name) for each in sums]
    return prepared.aggregate(["tx"], F.max_of("bucket").alias("bucket"), *columns).with_column("born_ms", F.born_ms())


def _at_home(backend_count: int, home: Column) -> tuple[Column, Column, Column]:
    """Return the number of targets at *home*, the bits of their indexes, and the number of targets everywhere."""
    targets, mask, total = F.lit(0), F.lit(0), F.lit(0)
    for number in range(backend_count):
        targets = F.when(home == number, F.col(f"targets_{number}")).otherwise(targets)
        mask = F.when(home == number, F.col(f"mask_{number}")).otherwise(mask)
        total = total + F.col(f"targets_{number}")
    return targets, mask, total


def derived(
    lines: Frame,
    backend_count: int,
    judged: Mapping[int, Column],
    rows_known: Mapping[int, Column],
    fence_only: Sequence[int] = (),
) -> Frame:
    """Return the columns of a `Tally`, and the columns that are shown of it.

    Args:
        judged: Per group, the condition under which absence is a proof.
        rows_known: Per group, the condition under which a missing fence row is a proof.
        fence_only: Groups in which the fence decides every half, whatever the half says of itself.
    """
    is_fenced = F.col("group").isin(list(fence_only)) & (F.col("halves") > 0) if fence_only else F.lit(False)
    places = [F.when(F.col(name) >= 0, F.col(name)) for name in ("home", "op_home")]
    places += [F.when(F.col(f"targets_{number}") > 0, F.lit(number)) for number in range(backend_count)]
    home = F.coalesce(*places, F.lit(-1))
    targets, mask, total = _at_home(backend_count, home)
    decided_place = F.col("decided_at").shifted_right(2)
    is_void = F.col("exhausted_first") > decided_place
    exhausted = F.when(is_void, -1).otherwise(F.col("exhausted"))

    def by_group(holds: Mapping[int, Column]) -> Column:
        found = F.lit(False)
        for number, condition in holds.items():
            found = F.when(F.col("group") == number, condition).otherwise(found)
        return F.when(found, 1).otherwise(0)

    with_targets = (
        lines.with_column("targets", targets)
        .with_column("present", F.bit_count(mask).cast("bigint"))
        .with_column("all_targets", total)
        .with_column("home", home)
        .with_column("fenced", F.when(is_fenced, F.lit(1).cast("bigint")).otherwise(F.col("fenced")))
    )
    one = (F.col("declared") == 1) & (F.col("index_max") <= 0)
    differs_one = (F.col("target_hash_min") != F.col("half_hash_min")) | (
        F.col("target_hash_max") != F.col("half_hash_min")
    )
    return (
        with_targets.with_column(
            "corrupt",
            F.when((F.col("halves") == 0) | (F.col("all_targets") == 0), 0)
            .when(one, F.when(differs_one, 1).otherwise(0))
            .otherwise(F.when(F.col("target_hash") != F.col("half_hash"), 1).otherwise(0)),
        )
        .with_column("discarded", F.greatest(F.col("discarded_other"), exhausted))
        .with_column("discarded_ms", F.greatest("other_ms", F.when(is_void, 0).otherwise(F.col("exhausted_ms"))))
        .with_column("decided", F.when(F.col("decided_at") < FAR, F.col("decided_at") % 4).otherwise(0))
        .with_column("row", F.col("row_read") % STATES)
        .with_column("altered", F.when(digests.is_altered(), 1).otherwise(0))
        .with_column("missent", F.lit(0))
        .with_column("absence", by_group(judged))
        .with_column("row_absence", by_group(rows_known))
    )


def needs_care() -> Column:
    """Return which derived lines cannot be trusted without a second look at their rows."""
    is_each_once = (F.col("all_targets") == F.col("declared")) & (F.col("present") == F.col("declared"))
    is_plain = is_each_once & (F.col("half_rows") == F.col("declared"))
    is_one = (F.col("declared") <= 1) & (F.col("index_max") <= 0)
    has_parts = (F.col("halves") > 0) & (F.col("all_targets") > 0) & ~is_one
    has_both = (F.col("exhausted") >= 0) & (F.col("decided_at") < FAR)
    is_wide = (F.col("declared") > INDEX_MAX) | (F.col("index_max") >= INDEX_MAX)
    return (has_parts & ~is_plain) | has_both | is_wide | digests.is_vouched()


def careful(found: Frame, rows: Frame) -> Frame:
    """Return *found* with the lines that need care counted again from those of their *rows* that are in force."""
    suspects = found.where(needs_care()).select(
        "tx", "home", F.col("decided_at").shifted_right(2).alias("decided_place")
    )
    near = rows.join(suspects.small_if_few(), ["tx"])
    is_half, is_target = F.col("kind") == int(Kind.HALF), F.col("kind") == int(Kind.TARGET)
    is_home = is_target & (F.col("backend") == F.col("home"))
    per_index = near.where(is_half | is_target).aggregate(
        ["tx", "index"],
        F.min_of(F.when(is_half, F.col("hash"))).alias("wanted"),
        F.min_of(F.when(is_target, F.col("hash"))).alias("lowest"),
        F.max_of(F.when(is_target, F.col("hash"))).alias("highest"),
        F.count_of(F.when(is_home, 1)).alias("occurrences"),
        F.min_of(F.when(is_target, F.col("digest"))).alias("digest"),
        F.max_of(F.when(is_target, F.col("digest"))).alias("last_digest"),
    )
    differs = F.col("lowest").is_not_null() & (
        F.col("wanted").is_null() | (F.col("lowest") != F.col("wanted")) | (F.col("highest") != F.col("wanted"))
    )
    targets = per_index.aggregate(
        ["tx"],
        F.count_of(F.when(differs, 1)).alias("new_corrupt"),
        F.count_of(F.when(F.col("occurrences") > 0, 1)).alias("new_present"),
        F.count_of(F.when((F.col("digest") != F.col("last_digest")) | (F.col("lowest") != F.col("highest")), 1)).alias(
            "twofold"
        ),
        F.count_of(F.when(F.col("lowest").is_not_null() & F.col("digest").is_null(), 1)).alias("undigested"),
        digests.joined_digest().alias("sent_digest"),
    )
    is_exhausted = F.col("decision") == EXHAUSTED
    counts = (F.col("kind") == int(Kind.OP)) & (F.col("code") == int(OpKind.DISCARD))
    discards = near.where(counts & (~is_exhausted | (F.col("place") < F.col("decided_place")))).aggregate(
        ["tx"], F.max_of("generation").alias("new_discarded"), F.max_of("ts_ms").alias("new_discarded_ms")
    )
    joined = found.join(targets, ["tx"], "left").join(discards, ["tx"], "left")
    is_suspect = needs_care()
    again = {
        "corrupt": F.when(F.col("halves") == 0, 0).otherwise(F.coalesce("new_corrupt", F.lit(0))),
        "present": F.coalesce("new_present", F.lit(0)),
        "missent": F.when(digests.is_vouched() & (F.col("undigested") == 0) & digests.is_missent(), 1).otherwise(0),
        "discarded": F.coalesce("new_discarded", F.lit(-1)),
        "discarded_ms": F.coalesce("new_discarded_ms", F.lit(0)),
    }
    for name, value in again.items():
        joined = joined.with_column(f"careful_{name}", F.when(is_suspect, value.cast("bigint")).otherwise(F.col(name)))
    for name in again:
        joined = joined.with_column(name, F.col(f"careful_{name}"))
    return joined.select(*found.columns)


HIDDEN: Final = 1
UNSENT: Final = 2
"""Why a transaction's missing targets prove nothing: a topic that its half names, or that the message table used, was
not read."""


def with_unproven(found: Frame, sent_known: Mapping[int, Column]) -> Frame:
    """Return *found* without the losses that a topic which was not read may explain; `unproven` says why.

    Args:
        sent_known: Per group, the condition under which no target at all proves that a sent message is lost.
    """
    is_hidden = (F.col("unseen") > 0) & (F.col("first_commit") < F.col("first_rollback"))
    is_hidden &= F.col("present") < F.col("declared")
    is_known = F.lit(False)
    for number, condition in sent_known.items():
        is_known = F.when(F.col("group") == number, condition).otherwise(is_known)
    has_nothing = (F.col("row") == SENT) & (F.col("halves") == 0) & (F.col("all_targets") == 0)
    is_unsent = has_nothing & (F.col("absence") == 1) & ~is_known
    is_unseen = (F.col("missent") > 0) & ~is_known  # a target that was not read may be the one that is missing
    whole = F.when(F.col("unseen") > 0, F.greatest("present", "declared")).otherwise(F.col("present"))
    return (
        found.with_column("unproven", F.when(is_hidden, HIDDEN).when(is_unsent, UNSENT).otherwise(0))
        .with_column("missent", F.when(is_unseen, 0).otherwise(F.col("missent")))
        .with_column("present", whole)
        .with_column("row", F.when(F.col("unproven") == UNSENT, F.lit(3)).otherwise(F.col("row")))
    )
