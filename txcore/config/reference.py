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
    lines = [line for struct, path in _sections(Config, ()) for line in _section(struct, path)]
    return "\n".join(lines).strip() + "\n"


def keys() -> Iterator[dict[str, Any]]:
    """Yield every key with its section, kind of value, default and meaning, in the order of the tables."""
    for struct, path in _sections(Config, ()):
        for key, hint in _keys_of(struct).items():
            default = getattr(struct(), key)
            fact = {"section": ".".join(path), "key": key, "value": _kind(hint).replace("`", "")}
            yield fact | {"default": default, "meaning": description_of(hint)}


def _sections(struct: type[Struct], path: tuple[str, ...]) -> Iterator[tuple[type[Struct], tuple[str, ...]]]:
    """Yield a section and the ones inside it."""
    yield struct, path
    for key, hint in hints_of(struct).items():
        inner, kind = section_of(hint)
        if inner is not None:
            yield from _sections(inner, (*path, key, "NAME") if kind == "each" else (*path, key))


def _keys_of(struct: type[Struct]) -> dict[str, Any]:
    return {key: hint for key, hint in hints_of(struct).items() if section_of(hint)[0] is None}


def _section(struct: type[Struct], path: tuple[str, ...]) -> Iterator[str]:
    rows = []
    for key, hint in _keys_of(struct).items():
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
