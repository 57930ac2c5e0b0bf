"""Spark's own output: kept out of the audit's, in a file that is named if the audit fails."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

STANDARD_ERROR: Final = 2


class SparkOutput:
    """The file with Spark's own output; none where Spark writes to standard error, as asked for.

    Args:
        is_shown: Leave Spark's output on standard error.
    """

    def __init__(self, *, is_shown: bool) -> None:
        self.path: Path | None = None
        if not is_shown:
            number, path = tempfile.mkstemp(prefix="txcore-audit-spark-", suffix=".log")
            os.close(number)
            self.path = Path(path)

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Give the file to the processes that the block starts, as their standard error for life."""
        if self.path is None:
            yield
            return
        sys.stderr.flush()
        own = os.dup(STANDARD_ERROR)
        try:
            with self.path.open("ab") as file:
                os.dup2(file.fileno(), STANDARD_ERROR)
            yield
        finally:
            sys.stderr.flush()
            os.dup2(own, STANDARD_ERROR)
            os.close(own)

    def forget(self) -> None:
        """Remove the file; processes that write to it are not disturbed."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    @property
    def hint(self) -> str:
        """Where to read on after a failure; empty where Spark's output was shown."""
        return "" if self.path is None else f" (Spark's own output: {self.path}; --verbose shows it)"
