"""The options of a broker's URL, for every backend: declared as the fields of a dataclass, parsed and described here.

A declaration is a field's default: `partitions: int = whole(4, 1, 256, "of a new group")`. Fields without one, such as
a password, come from other parts of the URL, `scheme://user:password@host:port,host:port/path?option=value`. A meaning
is a phrase in Markdown, for the table that `option_table` makes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import SplitResult, parse_qsl, unquote

from txcore import ranges
from txcore.errors import ConfigError

T = TypeVar("T")
KEYS_OPTION: Final = "signing_keys"
"""Option of every broker's URL that `txcore.signing` reads; backends pass over it."""
_OPTION: Final = "txcore.option"
_WORDS: Final = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}
_URL: Final = re.compile(
    r"(?=[^\x00-\x1f\x7f]*\Z)(?:([^:/?#]+):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.ASCII
)
"""Source: RFC 3986, appendix B. `urlsplit` of Python 3.14 refuses several servers when one is in brackets."""
_SERVER: Final = re.compile(r"(?:\[([^]\[]+)\]|([^]\[:@]+))(?::(\d{1,5}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a URL.

    Attributes:
        parse: Makes the value of the option's name and text; raises ConfigError, whose key is the name.
        values: The values that it takes, in Markdown.
        meaning: Its effect, in Markdown.
    """

    parse: Callable[[str, str], Any]
    values: str
    meaning: str


def _metadata(parse: Callable[[str, str], Any], values: str, meaning: str) -> Mapping[str, Option]:
    return {_OPTION: Option(parse, values, meaning)}


def _number(kind: ranges.Kind, low: float, high: float, meaning: str) -> Mapping[str, Option]:
    def parse(key: str, given: str) -> float:
        return ranges.parse(key, given, kind, low, high)

    return _metadata(parse, f"{ranges.number_text(low)} to {ranges.number_text(high)}", meaning)


def _parse_text(key: str, given: str) -> str:
    if not given:
        raise ConfigError(f"{key} is empty", key=key)
    return given


def whole(default: int, low: int, high: int, meaning: str) -> int:
    """Declare a whole number from *low* to *high*."""
    return field(default=default, metadata=_number(int, low, high, meaning))


def seconds(default: float, low: float, high: float, meaning: str) -> float:
    """Declare a time from *low* to *high* seconds, with or without a fraction."""
    return field(default=default, metadata=_number(float, low, high, meaning))


def switch(default: bool | None, meaning: str) -> bool:  # noqa: FBT001 - a declaration reads like the others
    """Declare `true` or `false`; None as *default* is for a switch that other options imply."""

    def parse(key: str, given: str) -> bool:
        if given.lower() not in _WORDS:
            raise ConfigError(f"{key} is true or false, not {given!r}", key=key)
        return _WORDS[given.lower()]

    return cast("bool", field(default=default, metadata=_metadata(parse, "`true`, `false`", meaning)))


def choice(default: str, choices: Sequence[str], meaning: str) -> str:
    """Declare one of a few words; the URL may write it in small or capital letters."""

    def parse(key: str, given: str) -> str:
        for each in choices:
            if each.lower() == given.lower():
                return each
        raise ConfigError(f"{key} is one of {', '.join(choices)}, not {given!r}", key=key)

    return field(default=default, metadata=_metadata(parse, ", ".join(f"`{each}`" for each in choices), meaning))


def text(meaning: str) -> str:
    """Declare a text; it is "" if it is not given, and cannot be given as that."""
    return field(default="", metadata=_metadata(_parse_text, "text", meaning))


def secret(meaning: str) -> str:
    """Declare a text that no `repr` and no error shows."""
    return field(default="", repr=False, metadata=_metadata(_parse_text, "text", meaning))


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """The options of TLS, for backends to derive their own from; every option of TLS but `tls` implies it.

    A backend whose driver has a name for the server, or other terms of its own, declares these beside them as `tls_…`.

    Raises:
        ConfigError: the certificate or its key is given alone, or `tls=false` with another option of TLS.
    """

    tls: bool | None = switch(None, "encrypt; every other option of TLS implies it")
    tls_verify: bool = switch(True, "`false` trusts every server; for tests only")
    tls_ca: str = text("PEM file of the authorities to trust, instead of the system's")
    tls_cert: str = text("PEM file of the client's own certificate; needs `tls_key`")
    tls_key: str = text("PEM file of its key")
    tls_key_password: str = secret("the password of that file")

    def __post_init__(self) -> None:
        if self.tls is False and self.is_encrypted:
            raise ConfigError("tls=false contradicts the other options of TLS", key="tls")
        if bool(self.tls_cert) is not bool(self.tls_key):
            raise ConfigError("tls_cert and tls_key belong together", key="tls_key" if self.tls_cert else "tls_cert")
        if self.tls_key_password and not self.tls_key:
            raise ConfigError("tls_key_password needs tls_key", key="tls_key_password")

    @property
    def is_encrypted(self) -> bool:
        """Whether connections are encrypted."""
        return bool(self.tls) or any(
            getattr(self, each.name) != each.default for each in fields(self) if each.name.startswith("tls_")
        )


class Server(NamedTuple):
    """One address in a URL; as a text `host:port`, with brackets around an address of IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def options_of(declared: type[Any]) -> Mapping[str, Option]:
    """Return the options of a class by their names, in its order; those of TLS, which it derives, are the last."""
    found = {each.name: each.metadata[_OPTION] for each in fields(declared) if _OPTION in each.metadata}
    return dict(sorted(found.items(), key=lambda item: item[0].startswith("tls")))


def parse_options(declared: type[T], url: str, **address: Any) -> T:
    """Return *declared*, made of the options in the URL's query and of *address*, the fields from its other parts.

    Raises:
        ConfigError: an option is unknown, given twice, of the wrong kind or out of range; `key` names it.
    """
    known, values = options_of(declared), {}
    for key, given in given_options(url):
        if key not in known:
            scheme = split_url(url).scheme
            raise ConfigError(f"the {scheme} backend has no option {key!r}; it has {', '.join(known)}", key=key)
        if key in values:
            raise ConfigError(f"option {key!r} appears twice in the backend URL", key=key)
        values[key] = known[key].parse(key, given)
    return declared(**values, **address)


def given_options(url: str) -> list[tuple[str, str]]:
    """Return the options in the URL's query that are for its backend, as (name, text)."""
    given = parse_qsl(split_url(url).query, keep_blank_values=True)
    return [(name, text) for name, text in given if name != KEYS_OPTION]


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL.

    Raises:
        ConfigError: it cannot be split, or an `@` after its servers shows that a password holds a `/`, `?` or `#`
            that ended it too early; the text does not show it, because it may hold a password.
    """
    matched = _URL.fullmatch(url.strip())
    netloc = matched[2] or "" if matched else ""
    if matched is None or netloc.count("[") != netloc.count("]"):
        raise ConfigError("the URL has brackets or characters that no URL can have", key="url")
    scheme, *others = matched.groups("")
    parts = SplitResult(scheme.lower(), *others)
    if parts.netloc and "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise ConfigError("the URL has an @ after its servers: encode / ? # of a password, or this @, by %", key="url")
    return parts


def account_of(url: str) -> tuple[str, str | None]:
    """Return the percent-decoded user and password before the `@`; "" without a user, None without a colon."""
    user, colon, password = split_url(url).netloc.rpartition("@")[0].partition(":")
    return unquote(user), unquote(password) if colon else None


def servers_of(url: str, port_default: int) -> tuple[Server, ...]:
    """Return the servers of the URL, which are separated by commas.

    Raises:
        ConfigError: one of them is no host or host:port; the text does not show it, as it may be part of a password.
    """
    parts, found = split_url(url), []
    for each in parts.netloc.rpartition("@")[2].split(","):
        matched = _SERVER.fullmatch(each)
        port = int((matched and matched[3]) or port_default)
        if not matched or not 0 < port < 65_536:
            like = f"{parts.scheme}://user:password@host:{port_default},other:{port_default}"
            raise ConfigError(f"a {parts.scheme} URL names its servers, and encodes a password by %: {like}", key="url")
        found.append(Server(matched[1] or matched[2], port))
    return tuple(found)


def option_table(declared: type[Any]) -> str:
    """Return the options of a class as a table in Markdown."""
    return "\n".join(_lines(declared))


def _lines(declared: type[Any]) -> Iterator[str]:
    defaults = {each.name: each.default for each in fields(declared)}
    yield "| option | values | default | meaning |"
    yield "|---|---|---|---|"
    for name, option in options_of(declared).items():
        default = defaults[name]
        if isinstance(default, bool):
            default = str(default).lower()
        elif isinstance(default, float):
            default = ranges.number_text(default)
        shown = "" if default in {None, ""} else f"`{default}`"
        yield f"| `{name}` | {option.values} | {shown} | {option.meaning} |"
