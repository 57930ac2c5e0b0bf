"""What a tally says of the digest in the fence row: whether a half, or targets without a half, differ from it."""

from __future__ import annotations

from txcore.audit.verdicts import SENT
from txcore_spark import expressions as F
from txcore_spark.expressions import Column


def is_altered() -> Column:
    """Return whether a copy of the half has another digest than the fence row, if both have one."""
    is_other = F.lit(False)
    for part in ("high", "low"):
        for name in (f"half_{part}", f"half_{part}_max"):
            is_other = is_other | (F.col(name) != F.col(f"row_{part}"))
    return (F.col("row_digests") > 0) & (F.col("half_digests") > 0) & is_other


def is_vouched() -> Column:
    """Return which lines have targets for which nothing but the fence row vouches: all came by the message table."""
    has_only_row = (F.col("halves") == 0) & (F.col("row") == SENT) & (F.col("row_digests") > 0)
    return has_only_row & (F.col("all_targets") > 0)


def joined_digest() -> Column:
    """Return the digest of a transaction, hexadecimal, from those of its targets."""
    return F.sha256_of("digest", "index")


def is_missent() -> Column:
    """Return whether the targets have another digest than the fence row, or one of them two."""
    is_other = F.col("twofold") > 0
    for part, first in (("high", 1), ("low", 17)):
        is_other = is_other | (F.signed_of_hex(F.col("sent_digest"), first) != F.col(f"row_{part}"))
    return is_other
