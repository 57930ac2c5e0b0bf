"""Facts about the machine, which the figures depend on."""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

COLLECT_AT_COUNT: Final = 20_000
"""Number of new objects before a garbage collection, as docs/guide-developer.md advises."""
AS_ADVISED: Final = "on one of the cores, with few garbage collections"
LOADED_PER_CORE: Final = 0.5
"""Load average of the last minute, for each core, above which other work changes what is measured."""
DRIVERS: Final = ("SQLAlchemy", "psycopg", "confluent-kafka", "pika", "nats-py")


def facts(folder: Path) -> dict[str, Any]:
    """Return the facts about this machine; *folder* holds the files of the run."""
    return {
        "cores": _core_count(),
        "cpu": _cpu_model(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "file_system": _file_system(folder),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "drivers": ", ".join(f"{name} {_version(name)}" for name in DRIVERS),
        "txcore": _version("txcore"),
    }


def load_average() -> list[float]:
    """Return the load average of the last 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def occasion() -> dict[str, Any]:
    """Return the day, in UTC, and the command's arguments, for a report that is kept."""
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), "arguments": sys.argv[1:]}


def load_warning(before: Sequence[float], core_count: int | None = None) -> str:
    """Return one sentence if other work loaded the machine before a run, else an empty text.

    Args:
        before: Result of `load_average`, taken before the run itself began to load the machine.
        core_count: Number of cores of the machine that was measured; None: of this one.
    """
    if before[0] <= LOADED_PER_CORE * (core_count or _core_count()):
        return ""
    return f"LOADED MACHINE: load average {before[0]:g} before the run. Compare ratios of CPU, not rates."


def warn_if_loaded() -> None:
    """Print `load_warning` to standard error, at the start of a benchmark without a report."""
    if warning := load_warning(load_average()):
        print(warning, file=sys.stderr, flush=True)


@contextlib.contextmanager
def as_advised() -> Iterator[None]:
    """Within the block, run this process as advised for busy producers: one processor, few garbage collections.

    All threads of the process, and those that they start, stay on the last processor, as under `taskset`. Python's lock
    lets only one thread run at a time. Waking a thread on another processor costs more than waiting for its own, most
    of all on a virtual machine. Existing objects are left out of collections.
    """
    cpus, thresholds = os.sched_getaffinity(0), gc.get_threshold()
    _move_to({max(cpus)})
    gc.freeze()
    gc.set_threshold(COLLECT_AT_COUNT)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        _move_to(cpus)


def _move_to(cpus: set[int]) -> None:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(int(task.name), cpus)


def _core_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _cpu_model() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _file_system(folder: Path) -> str:
    """Return the type of the file system that holds *folder*: on a tmpfs an fsync costs nothing."""
    kind, longest = "unknown", -1
    for line in _read("/proc/mounts").splitlines():
        fields = line.split()
        if len(fields) > 2 and folder.resolve().is_relative_to(fields[1]) and len(fields[1]) > longest:
            kind, longest = fields[2], len(fields[1])
    return kind
