"""Markers in a log: records of the plugin's own, known by a header, which txcore's readers never return."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from txcore.ids import ID_BYTES
from txcore.records import LogKind
from txcore.wire import encode_end_marker
from txcore_nats.codec import parse_headers
from txcore_nats.options import GroupNames

HEADER_END: Final = "txcore-end"  #: of every marker, and of no other record
BEGINNING: Final = "begin"  #: its value in the marker of a log's beginning
_AUTHOR: Final = "txcore_nats"
_NONCE: Final = _AUTHOR.encode().ljust(ID_BYTES, b"\0")
"""A constant in the place of a transaction id, for readers that do not know markers; no record is looked up by it."""


def marker(names: GroupNames, kind: LogKind, partition: int) -> tuple[str, bytes]:
    """Return the subject and the body of a log's markers."""
    return names.marker_subject(kind, partition), encode_end_marker(names.group, kind, partition, _NONCE, _AUTHOR)


def is_end_marker(headers: Mapping[str, str] | None) -> bool:
    """Return whether a record with these headers is a marker of a log's end."""
    return headers is not None and HEADER_END in headers


def is_beginning(headers: Mapping[str, str] | None) -> bool:
    """Return whether a record with these headers is the first one that its log ever held."""
    return headers is not None and headers.get(HEADER_END) == BEGINNING


def is_stored_end_marker(message: Mapping[str, Any]) -> bool:
    """Return whether the *message* of a STREAM.MSG.GET answer is such a marker."""
    return is_end_marker(parse_headers(base64.b64decode(message.get("hdrs") or "")))
