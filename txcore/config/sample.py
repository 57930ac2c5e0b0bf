"""The file of `txcore config init`: it works once its two URLs are edited, and holds every other key as a comment.

The text is made of the structs, so that it cannot differ from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from txcore.config.conversion import hints_of, section_of
from txcore.config.schema import Config

WIDTH: Final = 100
NAMES: Final = {
    "backends": "main",
    "databases": "main",
    "groups": "orders",
    "rules": "LATE_CHECK",
    "tokens": "observers",
    "effects": "orders",
    "consumers": "mail",
}
"""Names of the sample's one broker, database, group, rule, further token, and consumer."""
LIVE: Final = {
    ("backends", "main", "url"): "sqlite:///broker.db",
    ("databases", "main", "url"): "sqlite:///shop.db",
    ("groups", "orders", "database"): "main",
}
"""Keys without a comment sign, and their values."""
OPTIONAL: Final = frozenset({"callback", "audit", "tokens"})
"""Sections that are commented out as a whole."""
HEAD: Final = """\
# txcore.toml configures `txcore checker`. Edit the two URLs and run it; `txcore checker --check-config` tries it out.
# A key after a `#` shows its default. Durations are seconds. Files are named relative to this one.
# Each key may also come from the environment, as in TXCORE_GROUPS__ORDERS__POLICY__INTERVAL_S=60, or from
# `--set groups.orders.policy.interval_s=60`. Secrets do not belong here: name a file or a variable that holds them.
"""


def sample() -> str:
    """Return the text."""
    return HEAD + "\n".join(_section(Config, ())) + "\n"


def _section(struct: type[Struct], path: tuple[str, ...], *, is_live: bool = True) -> Iterator[str]:
    sections = []
    for key, hint in hints_of(struct).items():
        inner, kind = section_of(hint)
        if inner is not None:
            place = (*path, key, NAMES[key]) if kind == "each" else (*path, key)
            sections.append((place, inner, is_live and key not in OPTIONAL))
            continue
        yield from wrap(description_of(hint), WIDTH, initial_indent="# ", subsequent_indent="# ")
        yield _line((*path, key), getattr(struct(), key))
    for place, inner, is_live_inside in sections:
        yield ""
        yield from wrap(_first_sentence(inner), WIDTH, initial_indent="# ", subsequent_indent="# ")
        yield f"{'' if is_live_inside else '# '}[{'.'.join(place)}]"
        yield from _section(inner, place, is_live=is_live_inside)


def _line(path: tuple[str, ...], default: Any) -> str:
    if path in LIVE:
        return f"{path[-1]} = {toml_value(LIVE[path])}"
    return f"# {path[-1]} = {toml_value(default)}"


def toml_value(value: Any) -> str:
    """Return a plain value as TOML writes it."""
    return msgspec.json.encode(value).decode()


def description_of(hint: Any) -> str:
    """Return the description in a key's annotation."""
    texts = [each.description for each in metas_of(hint) if each.description]
    return texts[-1] if texts else ""


def metas_of(hint: Any) -> Iterator[Meta]:
    """Yield the bounds and descriptions of a key's annotation, inner ones first."""
    if get_origin(hint) is Annotated:
        inner, *extras = get_args(hint)
        yield from metas_of(inner)
        yield from (each for each in extras if isinstance(each, Meta))


def _first_sentence(struct: type[Struct]) -> str:
    return (struct.__doc__ or "").splitlines()[0]
