"""A process that forks a child for each job, so that the imports happen once, and its protocol.

Jobs and answers are lines. A child's output goes to standard error.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from txcore.registry import plugin_for

_STOP_TIME_MAX_S: Final = 60.0


class ForkServer:
    """Runs jobs, one at a time, with a module whose `__main__` calls `serve`. Not thread safe."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process that forks."""
        self._process = subprocess.Popen(  # noqa: S603 - txcore's own module
            [sys.executable, "-m", self._module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def stop(self) -> None:
        """End the process; does nothing if it was never started."""
        process = self._process
        if process is not None and process.stdin and process.stdout:
            process.stdin.close()
            process.wait(_STOP_TIME_MAX_S)
            process.stdout.close()

    def run(self, job: str) -> int:
        """Run a job in a process of its own and return its exit status, negative for a signal.

        Raises:
            RuntimeError: the process that forks has died.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        print(job, file=process.stdin, flush=True)
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError("the process that starts the programs has died")
        return int(answer)


def load_backend(url: str) -> None:
    """Import the backend of *url*, before the first child needs it."""
    plugin_for(url)


def serve(prepare: Callable[[str], None], run: Callable[[str], int]) -> None:
    """For each job on standard input: *prepare* in this process, fork, *run* in the child, print its exit status."""
    for line in sys.stdin:
        prepare(line)
        process = os.fork()
        if process == 0:
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            os._exit(run(line))
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
