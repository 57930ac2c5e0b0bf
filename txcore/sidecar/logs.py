"""The sidecar's logging: to standard error, as text lines or JSON, with repeated lines suppressed.

An event is a constant name with facts (`txcore.runtime.instrumentation`); none of them contains a message body.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from txcore.clock import Clock
from txcore.config import LogSection
from txcore.operator.formatting import one_line
from txcore.sidecar.figures import text_of

PERIOD_S: Final = 10.0
EVENTS_KEPT: Final = 1_000
FACT_CHARACTERS_MAX: Final = 2_000
OTHERS_LEVEL: Final = logging.WARNING
"""Least level of libraries' lines; their debug lines could contain message bodies."""


def configure(section: LogSection, clock: Clock) -> None:
    """Set up logging for the process; called again after each reload."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if section.format == "json" else HumanFormatter())
    handler.addFilter(RepeatFilter(clock, section.repeats_max))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(OTHERS_LEVEL)
    logging.getLogger("txcore").setLevel(section.level.upper())


class HumanFormatter(logging.Formatter):
    """`2026-01-31 12:00:00.123 WARNING check.no_answer group=orders reason='…'`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the traceback where there is one."""
        at = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        facts = "".join(f" {key}={_quoted(value)}" for key, value in facts_of(record).items())
        line = f"{at} {record.levelname} {one_line(record.getMessage())}{facts}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, event, and the event's facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        fields |= {key: value for key, value in facts_of(record).items() if key not in fields}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=True)


class RepeatFilter(logging.Filter):
    """Passes *repeats_max* lines of one event and group per `PERIOD_S`; the next line says how many were suppressed.

    Lines with a traceback count by the type of their error too; lines of libraries count by the statement that logs
    them, as their texts contain port numbers and the like.
    """

    def __init__(self, clock: Clock, repeats_max: int) -> None:
        super().__init__()
        self._clock = clock
        self._repeats_max = repeats_max
        self._seen: dict[tuple[str, ...], tuple[float, int]] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is written."""
        key = _kind_of(record)
        now_s = self._clock.elapsed_s()
        with self._lock:
            began_s, count = self._seen.get(key, (now_s, 0))
            left_out = 0
            if now_s - began_s >= PERIOD_S:
                left_out = max(count - self._repeats_max, 0)
                began_s, count = now_s, 0
            if key not in self._seen and len(self._seen) >= EVENTS_KEPT:
                self._seen.clear()
            self._seen[key] = (began_s, count + 1)
        if left_out:
            record.txcore = {**getattr(record, "txcore", {}), "left_out": left_out}
        return count < self._repeats_max


def _kind_of(record: logging.LogRecord) -> tuple[str, ...]:
    """Return the key by which lines count as repetitions of one another."""
    facts: Mapping[str, Any] | None = getattr(record, "txcore", None)
    error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
    if facts is None:
        return f"{record.pathname}:{record.lineno}", error
    return str(record.msg), str(facts.get("group", "")), error


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the facts of an event, plain and bounded."""
    facts: Mapping[str, Any] = getattr(record, "txcore", {})
    return {key: _plain(value) for key, value in facts.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = text_of(value)
    return text if len(text) <= FACT_CHARACTERS_MAX else f"{text[:FACT_CHARACTERS_MAX]}…"


def _quoted(value: Any) -> str:
    text = one_line(str(value))
    return repr(text) if not text or " " in text else text
