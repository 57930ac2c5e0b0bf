"""A sampling profiler in a thread: this process's processor time by code, split into us, driver and other.

Every few milliseconds each thread's processor time since the last sample (from its schedstat in /proc) is added to the
function that it is in. C code counts as its calling function; threads that the driver made without Python count as
the driver's. The sampler itself is left out.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, defaultdict
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final

PERIOD_S: Final = 0.004
ROOT: Final = str(Path(__file__).parents[1])
DRIVERS: Final = ("confluent_kafka", "pika", "nats", "psycopg", "psycopg_binary", "sqlalchemy", "aiosqlite", "sqlite3")
US, DRIVER, OTHER, NATIVE = "us", "driver", "other", "driver (its own threads)"
TOP_COUNT: Final = 12


class Profile:
    """Samples within `with`, which may be entered repeatedly."""

    def __init__(self) -> None:
        self.functions_s: Counter[tuple[str, str]] = Counter()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen_s: dict[int, float] = {}

    def __enter__(self) -> Profile:
        self._stop.clear()
        self._seen_s = _thread_times_s()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def figures(self) -> dict[str, Any]:
        """Return the shares of us, driver and other, and the functions that used most processor time."""
        total_s = sum(self.functions_s.values()) or 1.0
        shares: defaultdict[str, float] = defaultdict(float)
        for (kind, _), used_s in self.functions_s.items():
            shares[kind] += used_s
        top = [
            {"function": name, "kind": kind, "share": used_s / total_s}
            for (kind, name), used_s in self.functions_s.most_common(TOP_COUNT)
        ]
        return {"cpu_s": total_s, "shares": {kind: used / total_s for kind, used in shares.items()}, "top": top}

    def _run(self) -> None:
        own = threading.get_native_id()
        while not self._stop.wait(PERIOD_S):
            frames = sys._current_frames()  # noqa: SLF001 - documented, for such use
            of_python = {thread.native_id: frames.get(thread.ident or 0) for thread in threading.enumerate()}
            for number, used_s in _thread_times_s().items():
                spent_s = used_s - self._seen_s.get(number, 0.0)
                self._seen_s[number] = used_s
                if spent_s > 0 and number != own:
                    self.functions_s[place_of(of_python.get(number))] += spent_s  # type: ignore[assignment]


def place_of(frame: FrameType | None) -> tuple[str, str]:
    """Return the kind of a frame's code, and its function with file and line; no frame means a driver's thread."""
    if frame is None:
        return NATIVE, "threads without Python"
    path, code = frame.f_code.co_filename, frame.f_code
    _, installed, short = path.rpartition("site-packages/")
    is_ours = path.startswith(ROOT) and not installed
    if is_ours:
        short = path.removeprefix(ROOT + "/")
    name = f"{short}:{code.co_firstlineno} {code.co_qualname}"
    if is_ours:
        return (OTHER if short.startswith("benchmarks/") else US), name
    return (DRIVER if short.split("/")[0] in DRIVERS or "/sqlite3/" in path else OTHER), name


def _thread_times_s() -> dict[int, float]:
    """Return the processor time of each thread of this process."""
    times = {}
    for folder in Path("/proc/self/task").iterdir():
        try:
            times[int(folder.name)] = int((folder / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
        except (OSError, IndexError):
            continue  # the thread has ended
    return times
