"""Prints of 64 bits, by which the parts of a message and of a row are compared without keeping them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress

from txcore.audit.exact_json import exact_bytes, exact_value


def value_print(value: bytes) -> int:
    """Return the print of *value*: a signed number of 64 bits."""
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "big", signed=True)


def body_print(body: bytes) -> int:
    """Return the print of a body; of JSON, of its value, as databases write a JSON column in forms of their own.

    JSON with a name twice is compared byte for byte, because consumers do not agree which of the two counts.
    """
    if body[:1] in {b"{", b"["}:
        with suppress(ValueError):
            body = exact_bytes(exact_value(body))
    return value_print(body)


def header_prints(headers: Mapping[str, str | bytes]) -> list[int]:
    """Return a print for each header; none for one that is there twice, because consumers do not agree which counts."""
    doubled = {name.partition("\0")[0] for name in headers if "\0" in name}  # see `joined_headers`
    single = ((name, value) for name, value in headers.items() if name not in doubled)
    pairs = ((name.encode(), value.encode() if isinstance(value, str) else value) for name, value in single)
    return [value_print(b"%d:%b%b" % (len(name), name, value)) for name, value in pairs]
