"""Processor time and memory of processes, read from /proc: of a leading process and those that belong to it."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from txcore_conformance.machine import members_of

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the user and system time of a server's leading process and of all that belong to it."""
    ticks = 0
    for each in (pid, *members_of(pid)):
        fields = _read(each, "stat").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12]) if fields else 0
    return ticks / TICKS_PER_S


def driver_cpu_s() -> float:
    """Return the processor time of this process's threads that Python has not started: those of a driver in C."""
    ours = {thread.native_id for thread in threading.enumerate()}
    others = [int(task.name) for task in Path("/proc/self/task").iterdir() if int(task.name) not in ours]
    return sum(int((_read(os.getpid(), f"task/{each}/schedstat") or "0").split()[0]) for each in others) / 1e9


def memory_mb(pid: int) -> float:
    """Return the resident memory of one process."""
    lines = (line for line in _read(pid, "status").splitlines() if line.startswith("VmRSS:"))
    return sum(int(line.split()[1]) for line in lines) / 1024


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
