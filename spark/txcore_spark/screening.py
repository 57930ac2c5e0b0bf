"""One cheap pass over all rows: a line per transaction, which says whether the transaction is plainly correct.

Nearly all transactions are, and a few numbers prove it: one half, one end in time, exactly the targets that it demands,
and nothing else; or, for the message table, only targets and a fence row. Only the other transactions need the many
columns of `txcore_spark.tally`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txcore.audit.verdicts import SENT, STATES
from txcore.records import DECIDING_KINDS, MARK_KINDS, Forced, OpKind
from txcore_spark import expressions as F
from txcore_spark.expressions import Column
from txcore_spark.frames import Frame
from txcore_spark.rows import BUCKET_MS, FENCED, UNSEEN, Kind

BITS_MAX: Final = 62
"""First index or broker number without a bit of its own; a transaction that uses it needs a second look."""
FIELD_BITS: Final = 9
ROWS_MAX: Final = 1 << FIELD_BITS
"""Number of rows of one transaction that overflows the counters packed in one number."""
FIELDS: Final = ("halves", "half_rows", "targets", "commits", "rollbacks", "disturbed", "fenced")
"""Names of the packed counters, from the lowest bits upwards."""


def is_claim() -> Column:
    """Return which rows are CLAIM ops, by which a tally knows the ops that are in force."""
    return _is_op(OpKind.CLAIM)


def is_mark() -> Column:
    """Return which rows are CLAIM or TICK ops, which belong to a log and not to a transaction."""
    return _is_op(*MARK_KINDS)


def screened(rows: Frame, late_ms: int, fence_only: Sequence[int] = ()) -> Frame:
    """Return one line per transaction; `doubt` is 0 where no verdict is possible, whatever other rows exist.

    Where `doubt` is 1, only `tx`, `bucket` and `born_ms` of the line are valid.

    Args:
        late_ms: Longest time from half to decision that deserves no verdict.
        fence_only: Groups in which the fence decides every half, whatever the half says of itself.
    """
    is_half, is_target, is_row = (F.col("kind") == int(kind) for kind in (Kind.HALF, Kind.TARGET, Kind.ROW))
    is_end, is_committed = _is_op(*DECIDING_KINDS), _is_op(OpKind.COMMITTED)
    is_log = is_half | is_target | (F.col("kind") == int(Kind.OP))
    facts = rows.where((F.col("kind") < int(Kind.COVER)) & ~is_mark())
    grouped = facts.aggregate(
        ["tx"],
        F.count_of().alias("rows"),
        F.try_sum_of(_packed()).alias("packed"),
        F.bit_or_of(F.when(is_log, _bit("backend"))).alias("backends"),
        F.max_of(F.when(is_log | is_row, F.col("group"))).alias("group"),
        F.bit_or_of(F.when(is_target, _bit("index"))).alias("mask"),
        F.bit_xor_of(F.when(is_half | is_target, F.col("hash"))).alias("difference"),
        F.max_of(F.when(is_half, F.col("count"))).alias("declared"),
        F.min_of(F.when(is_half, F.col("ts_ms"))).alias("half_ms"),
        F.min_of(F.when(is_end, F.col("ts_ms"))).alias("op_ms"),
        F.max_of(F.when(is_committed, F.lit(1))).alias("is_committed"),
        F.max_of(F.when(is_row, F.col("place") * STATES + F.col("code"))).alias("row_read"),
        *(
            F.max_of(F.when(holds, F.col(f"digest_{part}"))).alias(f"{name}_{part}")
            for name, holds in (("row", is_row), ("half", is_half), ("target", is_target))
            for part in ("high", "low")
        ),
    )
    for number, name in enumerate(FIELDS):
        shifted = F.col("packed").shifted_right(FIELD_BITS * number)
        grouped = grouped.with_column(name, shifted.bits_and(ROWS_MAX - 1))
    return (
        grouped.with_column("born_ms", F.born_ms())
        .with_column("bucket", F.quotient("born_ms", BUCKET_MS).cast("int"))
        .select(
            "tx", "bucket", "born_ms", "group", F.bit_count(F.col("backends") - 1).alias("home"), "halves",
            "commits", "rollbacks", F.lit(0).alias("pending"), "declared", F.col("targets").alias("all_targets"),
            "half_ms", "op_ms", F.when(F.col("halves") == 0, 1).otherwise(0).alias("by_table"),
            F.lit(0).alias("elsewhere"), F.when(_is_well(late_ms, fence_only), 0).otherwise(1).alias("doubt"),
        )
    )  # fmt: skip


def _is_op(*kinds: OpKind) -> Column:
    return (F.col("kind") == int(Kind.OP)) & F.col("code").isin([int(kind) for kind in kinds])


def _bit(name: str) -> Column:
    return F.bit(name, BITS_MAX)


def _packed() -> Column:
    """Return the number that a row adds to the packed counters."""
    is_half, is_target = F.col("kind") == int(Kind.HALF), F.col("kind") == int(Kind.TARGET)
    is_commit, is_rollback = _is_op(OpKind.COMMIT, OpKind.RELEASED), _is_op(OpKind.ROLLBACK)
    is_forced = F.col("flags") == int(Forced.OVERRIDE)
    is_odd_half = (F.col("decision") > 0) | (F.col("flags").bits_and(UNSEEN) > 0) | (F.col("generation") > 0)
    holds = {
        "halves": is_half & (F.col("index") == 0),
        "half_rows": is_half,
        "targets": is_target,
        "commits": is_commit,
        "rollbacks": is_rollback,
        "disturbed": F.col("kind").isin(int(Kind.PARKED), int(Kind.COPY))
        | ((F.col("kind") == int(Kind.OP)) & (~_is_op(*DECIDING_KINDS) | is_forced))
        | (is_half & is_odd_half)
        | (is_target & (F.col("index") >= BITS_MAX))
        | (F.col("backend") >= BITS_MAX),
        "fenced": is_half & (F.col("flags").bits_and(FENCED) > 0),
    }
    packed = F.lit(0).cast("bigint")
    for number, name in enumerate(FIELDS):
        packed = packed + F.when(holds[name], F.lit(1 << (FIELD_BITS * number))).otherwise(F.lit(0)).cast("bigint")
    return packed


def _is_as_committed(name: str) -> Column:
    """Return whether a half, or an only target, has the digest that the fence row has, if that has one."""
    is_same = (F.col(f"{name}_high") == F.col("row_high")) & (F.col(f"{name}_low") == F.col("row_low"))
    return F.col("row_high").is_null() | F.coalesce(is_same, F.lit(False))


def _is_well(late_ms: int, fence_only: Sequence[int]) -> Column:
    row, declared = F.coalesce(F.col("row_read"), F.lit(0)) % STATES, F.col("declared")
    whole = _bit("declared") - 1
    is_committed = (F.col("commits") == 1) & (F.col("rollbacks") == 0) & (F.col("targets") == declared)
    is_committed &= (F.col("mask") == whole) & (F.col("difference") == 0)
    may_lack_row = (F.col("fenced") == 0) & ~F.col("group").isin(list(fence_only))
    is_committed &= (row == 1) | ((row == 0) & may_lack_row)
    is_rolled_back = (F.col("commits") == 0) & (F.col("rollbacks") == 1) & (F.col("targets") == 0) & row.isin(0, 2)
    is_rolled_back &= F.col("is_committed").is_null()  # else the ROLLBACK may have come second
    by_half = (
        _is_as_committed("half")
        & (F.col("halves") == 1)
        & (F.col("half_rows") == declared)
        & declared.between(1, BITS_MAX)
        & (F.col("op_ms") <= F.col("half_ms") + late_ms)
        & (is_committed | is_rolled_back)
    )
    # With the message table there is neither half nor op: only the targets, each once, and a row in state SENT.
    by_table = (
        (F.col("half_rows") == 0)
        & (F.col("commits") + F.col("rollbacks") == 0)
        & F.col("targets").between(1, BITS_MAX)
        & (F.col("mask") == _bit("targets") - 1)
        & (row == SENT)
        & (F.col("row_high").is_null() | (F.col("targets") == 1) & _is_as_committed("target"))
    )
    is_quiet = (F.col("rows") < ROWS_MAX) & (F.col("disturbed") == 0) & (F.bit_count("backends") == 1)
    return is_quiet & (by_half | by_table)
