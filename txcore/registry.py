"""Find and open backends by URL scheme; entry-point group `txcore`, name = scheme, loaded one at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

import pluggy

from txcore import hookspecs
from txcore.errors import BackendConflictError, BackendNotInstalledError, ConfigError, UnknownSchemeError
from txcore.findings import Examination, Request
from txcore.port import Backend

ENTRY_POINT_GROUP: Final = "txcore"


def connect(url: str) -> Backend:
    """Open the backend that *url* names, such as `sqlite:///broker.db` or `kafka://127.0.0.1:9092`.

    Raises:
        UnknownSchemeError: no installed backend has the scheme; the known ones are listed.
        BackendNotInstalledError: its driver is missing; the text names the extra to install.
        BackendConflictError: two distributions offer the scheme; both are named.
        ConfigError: an option of the URL is unknown or has the wrong unit.
        BackendUnavailableError: the broker cannot be reached.
    """
    backend = _hook(url).txcore_open_backend(url=url, options=_options(url))
    if backend is None:
        raise UnknownSchemeError(urlsplit(url).scheme, known_schemes())
    return cast("Backend", backend)


def open_doctor(url: str, request: Request) -> Examination[Any] | None:
    """Return the backend's own checks of the live broker that *url* names, or None when it offers none.

    Raises:
        UnknownSchemeError, BackendNotInstalledError, BackendConflictError, ConfigError: see `connect`.
        BackendUnavailableError: the broker cannot be reached, or refuses the credentials.
    """
    return cast("Examination[Any] | None", _hook(url).txcore_doctor(url=url, options=_options(url), request=request))


def find_entry_point(scheme: str) -> EntryPoint:
    """Return the one entry point for *scheme*.

    Raises:
        UnknownSchemeError, BackendConflictError: see `connect`.
    """
    found = {(point.value, _distribution(point)): point for point in entry_points(group=ENTRY_POINT_GROUP, name=scheme)}
    if not found:
        raise UnknownSchemeError(scheme, known_schemes())
    if len(found) > 1:
        raise BackendConflictError(scheme, tuple(sorted(distribution for _, distribution in found)))
    return next(iter(found.values()))


def known_schemes() -> tuple[str, ...]:
    """Return the schemes of all installed backends, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=ENTRY_POINT_GROUP)}))


@dataclass(frozen=True, slots=True)
class InstalledBackend:
    """One line of `txcore backends`."""

    scheme: str
    distribution: str
    version: str
    missing: str  #: "" or the sentence that names the extra to install


def installed_backends() -> Sequence[InstalledBackend]:
    """Return every installed backend, with the missing driver, if any."""
    lines = []
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        missing = ""
        try:
            check = getattr(point.load(), "check_driver", None)
            if check is not None:
                check()
        except (BackendNotInstalledError, ImportError) as error:
            missing = str(error)
        version = point.dist.version if point.dist else "?"
        lines.append(InstalledBackend(point.name, _distribution(point), version, missing))
    return lines


def _hook(url: str) -> Any:
    scheme = urlsplit(url).scheme if isinstance(url, str) else ""
    if not scheme:
        raise ConfigError(f"a backend URL looks like scheme://…, not {_without_password(url)!r}", key="url")
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(find_entry_point(scheme).load())
    return manager.hook


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unnamed distribution"


def _options(url: str) -> Mapping[str, str]:
    options: dict[str, str] = {}
    for key, value in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if key in options:
            raise ConfigError(f"option {key!r} appears twice in the backend URL", key=key)
        options[key] = value
    return options


def _without_password(url: str) -> str:
    if not isinstance(url, str):
        return type(url).__name__
    head, at, tail = url.rpartition("@")
    return f"…@{tail}" if at and head else url
