"""The reference of all keys as a Markdown table per section, made of the structs: `txcore config reference`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

from msgspec import Struct

from txcore.config.conversion import choices_of, hints_of, section_of
from txcore.config.sample import description_of, metas_of, toml_value
from txcore.config.schema import Config

KINDS: Mapping[Any, str] = {
    str: "text", int: "whole number", float: "number", bool: "true or false", list[str]: "list of texts",
    list[str] | str: "list of texts, or `all`",
}  # fmt: skip


def markdown() -> str:
    """Return the tables."""
    return "\n".join(_section(Config, ())).strip() + "\n"


def _section(struct: type[Struct], path: tuple[str, ...]) -> Iterator[str]:
    sections: list[tuple[tuple[str, ...], type[Struct]]] = []
    rows = []
    for key, hint in hints_of(struct).items():
        inner, kind = section_of(hint)
        if inner is not None:
            sections.append(((*path, key, "NAME") if kind == "each" else (*path, key), inner))
            continue
        default = getattr(struct(), key)
        shown = f"`{toml_value(default)}`" if default not in ("", []) else ""
        rows.append(f"| `{key}` | {_kind(hint)} | {shown} | {description_of(hint)} |")
    if rows:
        yield f"### `[{'.'.join(path)}]`"
        yield ""
        yield " ".join((struct.__doc__ or "").split())
        yield ""
        yield "| key | value | default | meaning |"
        yield "|---|---|---|---|"
        yield from rows
        yield ""
    for place, inner in sections:
        yield from _section(inner, place)


def _kind(hint: Any) -> str:
    plain = hint
    while get_origin(plain) is Annotated:
        plain = get_args(plain)[0]
    if choices := choices_of(plain):
        return " or ".join(f"`{each}`" for each in choices if each)
    bounds = []
    for meta in metas_of(hint):
        bounds += [
            f"{sign} {value:.10g}"
            for sign, value in ((">", meta.gt), ("≥", meta.ge), ("<", meta.lt), ("≤", meta.le))
            if value is not None
        ]
    if plain in {str, bool, list[str]}:
        bounds = []
    return ", ".join([KINDS[plain], *bounds])
