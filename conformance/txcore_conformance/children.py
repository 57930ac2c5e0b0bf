"""Other Python processes of a test, each with one of the programs in a file of the test's folder."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

CHILD_TIME_MAX_S: Final = 120.0


class Children:
    """Processes with the programs in *file*, which takes a program's name and its arguments from the command line.

    Each process is killed after `CHILD_TIME_MAX_S`, or by `reap`.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._started: list[tuple[subprocess.Popen[str], threading.Timer]] = []

    def start(self, program: str, *arguments: object) -> subprocess.Popen[str]:
        """Start *program* with this process's import path; its standard input and output are text pipes."""
        process = subprocess.Popen(  # noqa: S603 - a program of the test
            [sys.executable, str(self._file), program, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )
        watch = threading.Timer(CHILD_TIME_MAX_S, process.kill)
        watch.daemon = True
        watch.start()
        self._started.append((process, watch))
        return process

    def reap(self) -> None:
        """Kill every process and wait for its end."""
        for process, watch in self._started:
            watch.cancel()
            process.kill()
            process.communicate()
