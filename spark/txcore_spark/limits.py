"""What a run could not judge, in sentences that the terminal and the report share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from txcore.findings import counted
from txcore.ids import ID_BYTES, born_ms

TOPICS_MAX: Final = 5
"""Number of topics that a sentence names."""


def time_text(wall_ms: int) -> str:
    """Return a time in UTC."""
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{wall_ms} ms after 1970"


def exact_time_text(wall_ms: int) -> str:
    """Return a time in UTC to the millisecond."""
    try:
        moment = datetime.fromtimestamp(wall_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{wall_ms} ms after 1970"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{wall_ms % 1000:03}"


def limits_of(manifest: Mapping[str, Any]) -> list[str]:
    """Return what the run judged, for which births, and what it left out."""
    found = [sentence for group in sorted(manifest["groups"]) for sentence in _of_group(manifest, group)]
    return found + [sentence for name in sorted(manifest["backends"]) for sentence in _of_topics(manifest, name)]


def _of_group(manifest: Mapping[str, Any], group: str) -> Iterator[str]:
    if group in manifest["withheld"]:
        yield f"{group}: no missing record of {group} proves anything in this run, because of its gaps"
    else:
        from_ms = max(manifest["judged_from_ms"].get(group, 0), manifest["since_ms"])
        until_ms = min(manifest["until_ms"], manifest["now_ms"])
        since = f"from {time_text(from_ms)}" if from_ms else "from the beginning of the logs"
        yield f"{group}: missing messages are judged for births {since} to {time_text(until_ms)}"
    horizon = bytes.fromhex(manifest["horizons"].get(group, ""))
    if group in manifest["rows_withheld"]:
        yield f"{group}: no missing fence row of {group} proves anything in this run, because of its gaps"
    elif any(horizon) and len(horizon) == ID_BYTES:
        yield f"{group}: missing fence rows are judged for births from {time_text(born_ms(horizon))}; older are pruned"
    elif horizon:
        yield f"{group}: missing fence rows are judged for all births; no fence row was pruned"
    sent_ms = manifest["sent_from_ms"].get(group, 0)
    if sent_ms:
        yield f"{group}: messages of the message table are judged for births from {time_text(sent_ms)}"


def _of_topics(manifest: Mapping[str, Any], name: str) -> Iterator[str]:
    unread = manifest["unread"].get(name, [])
    if unread:
        yield (
            f"{name}: the audit left out {counted(len(unread), 'topic')} that no half of these groups names: "
            f'{_some(unread)}; audit.backends.{name}.topics = "all" reads every topic'
        )
    refused = manifest["refused"].get(name, {})
    if refused:
        reasons = [f"{topic} ({why})" for topic, why in sorted(refused.items())]
        yield f"{name}: {counted(len(refused), 'topic')} of no group cannot be read: {_some(reasons)}"


def _some(names: list[str]) -> str:
    more = len(names) - TOPICS_MAX
    return ", ".join(names[:TOPICS_MAX]) + (f" and {more} more" if more > 0 else "")
