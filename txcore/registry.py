"""Find and open backends by URL scheme; entry-point group `txcore`, name = scheme, loaded one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import pluggy

from txcore import hookspecs
from txcore.backends.options import split_url
from txcore.errors import BackendConflictError, ConfigError, UnknownSchemeError, UsageError
from txcore.findings import Examination, Request
from txcore.plugin import BackendPlugin
from txcore.port import Backend
from txcore.signing import SignedBackend, SigningKeys, keys_file_of

ENTRY_POINT_GROUP: Final = "txcore"
_MEMBERS: Final = sorted(name for name in vars(Backend) if not name.startswith("_"))


def connect(url: str, *, signing: SigningKeys | None = None) -> Backend:
    """Open the backend that *url* names, such as `sqlite:///broker.db` or `kafka://127.0.0.1:9092`.

    Args:
        url: Its option `signing_keys=FILE` names a file with the keys of groups whose records are signed.
        signing: The same keys, from another place than a file.

    Raises:
        UnknownSchemeError: no installed backend has the scheme; the known ones are listed.
        BackendNotInstalledError: its driver is missing; the text names the extra to install.
        BackendConflictError: two distributions offer the scheme; both are named.
        ConfigError: an option of the URL is unknown or has the wrong unit, the plugin lacks a part, or the file of
            signing keys cannot be used.
        BackendUnavailableError: the broker cannot be reached.
    """
    plugin = plugin_for(url)
    file = keys_file_of(url)
    keys = SigningKeys.from_file(file) if signing is None and file else signing
    backend = plugin.connect(url)
    missing = [name for name in _MEMBERS if not hasattr(backend, name)]
    if missing:
        text = f"the backend of the plugin {plugin.scheme!r} lacks {', '.join(missing)}; see txcore.port.Backend"
        raise ConfigError(text, key="backend")
    return backend if keys is None else SignedBackend(backend, keys)


def open_doctor(url: str, request: Request) -> Examination[Any] | None:
    """Return the backend's own checks of the live broker that *url* names, or None when it offers none.

    Raises:
        UnknownSchemeError, BackendNotInstalledError, BackendConflictError, ConfigError: see `connect`.
        BackendUnavailableError: the broker cannot be reached, or refuses the credentials.
    """
    return plugin_for(url).examine(url, request)


def plugin_for(url: str) -> BackendPlugin:
    """Return the plugin of the backend that *url* names.

    Raises:
        UnknownSchemeError, BackendConflictError, ConfigError: see `connect`.
        ImportError: its module cannot be loaded.
    """
    scheme = split_url(url).scheme if isinstance(url, str) else ""
    if not scheme:
        raise ConfigError(f"a backend URL looks like scheme://…, not {_without_password(url)!r}", key="url")
    found = {(point.value, _distribution(point)): point for point in entry_points(group=ENTRY_POINT_GROUP, name=scheme)}
    if not found:
        raise UnknownSchemeError(scheme, known_schemes())
    if len(found) > 1:
        raise BackendConflictError(scheme, tuple(sorted(distribution for _, distribution in found)))
    return _load(next(iter(found.values())))


def known_schemes() -> tuple[str, ...]:
    """Return the schemes of all installed backends, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=ENTRY_POINT_GROUP)}))


@dataclass(frozen=True, slots=True)
class InstalledBackend:
    """One line of `txcore backends`."""

    scheme: str
    distribution: str
    version: str
    missing: str  #: "" or the sentence that names the extra to install, or the plugin's fault


def installed_backends() -> Sequence[InstalledBackend]:
    """Return every installed backend, with the missing driver, if any."""
    lines = []
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        missing = ""
        try:
            _load(point).check_driver()
        except (UsageError, ImportError) as error:
            missing = str(error)
        version = point.dist.version if point.dist else "?"
        lines.append(InstalledBackend(point.name, _distribution(point), version, missing))
    return lines


def _load(point: EntryPoint) -> BackendPlugin:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    module = point.load()
    manager.register(module)
    plugin = manager.hook.txcore_backend()
    if isinstance(plugin, BackendPlugin) and plugin.scheme == point.name:
        return plugin
    found = f"one for {plugin.scheme}://" if isinstance(plugin, BackendPlugin) else repr(plugin)
    if plugin is None and not manager.get_hookcallers(module):
        found = "there is no such function with @txcore.hookimpl"
    text = f"txcore_backend() of {point.value} must return the BackendPlugin for {point.name}://, not {found}"
    raise ConfigError(text, key="txcore_backend")


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unnamed distribution"


def _without_password(url: str) -> str:
    if not isinstance(url, str):
        return type(url).__name__
    head, at, tail = url.rpartition("@")
    return f"…@{tail}" if at and head else url
