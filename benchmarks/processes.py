"""Processor time and memory of processes, read from /proc: of a leading process and those that belong to it."""

from __future__ import annotations

import os
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


def memory_mb(pid: int) -> float:
    """Return the resident memory of one process."""
    lines = (line for line in _read(pid, "status").splitlines() if line.startswith("VmRSS:"))
    return sum(int(line.split()[1]) for line in lines) / 1024


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
