"""Reading one range with the reader of its broker or database, in any engine.

An unreadable range becomes a row of its own (a gap), so that the run loses its verdict on absence, but not the facts
of the other ranges.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from txcore_spark.plan import FENCE, Range
from txcore_spark.readers import fence, reader_of
from txcore_spark.rows import Rows


def read_range(url: str, wanted: Range) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one range; a range that cannot be read whole ends with a gap instead of a cover."""
    began_s = time.process_time()
    try:
        yield from fence.read(url, wanted) if wanted.source.log == FENCE else reader_of(url).read(url, wanted)
        # The processor time of this process, with the engine's part of it, for the benchmark of the readers.
        rows = Rows(wanted.place)
        rows.add_cost(round((time.process_time() - began_s) * 1000))
        yield rows.take()
    except Exception as error:  # noqa: BLE001 - drivers raise any exception, and none may shorten a read
        rows = Rows(wanted.place)  # also where the file of signing keys cannot be used
        rows.add_gap(wanted.start, wanted.end, f"{type(error).__name__}: {error}"[:500])
        yield rows.take()
