"""The descriptor by which a backend's plugin offers its parts, and the calls that txcore makes on it.

Parts that need the broker's driver are named as `module:name`, so that the plugin can be described without the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, TypeAlias, cast

from txcore.errors import BackendNotInstalledError, ConfigError
from txcore.findings import Examination, Request
from txcore.guarantees import BrokerObject, Guarantees
from txcore.permissions import Access
from txcore.port import Backend

Part: TypeAlias = str | Callable[..., Any]
"""A function or class, or its name as `module:name`, which is imported with the first call."""
_MISSING: Final[Any] = None
"""Default of what a plugin must give, so that the error about it is a ConfigError with its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendPlugin:
    """The parts of one backend. A plugin's module returns it from the hook `txcore_backend`.

    Attributes:
        scheme: The scheme of its URLs, which is also the name of its entry point.
        parse_url: Makes the settings of a URL; needs no driver, and raises ConfigError.
        backend: Part: (settings) -> Backend; connects with the backend's first call.
        options: The dataclass with the URL's options, for documents; see `txcore.backends.options`.
        guarantees: A `Guarantees` for each form of the URL, the usual form first.
        driver: The distribution that the plugin needs, such as `nats-py`; "" for none.
        driver_module: The module of that distribution.
        extra: The extra of txcore that brings the driver; "" for a backend that is not part of txcore.
        examination: Part: (settings, Request) -> Examination; the checks of a live broker, for `txcore doctor`.
        objects: Part: (settings, group, partition count or 0) -> Sequence[BrokerObject]; offline, for `txcore topics`.
        permissions: Part: (settings, Access) -> str; a user's rights to paste, offline, for `txcore permissions`.
        consumer: Part: (settings, topic, group) -> a plain consumer of the topic, for `txcore demo`.
        target: Part: (settings, topic) -> None; makes a target topic that is missing, for `txcore topics create`.

    Raises:
        ConfigError: a part is missing or of the wrong kind; `key` names it.
    """

    scheme: str = _MISSING
    parse_url: Callable[[str], Any] = _MISSING
    backend: Part = _MISSING
    options: type[Any] | None = None
    guarantees: Sequence[Guarantees] = ()
    driver: str = ""
    driver_module: str = ""
    extra: str = ""
    examination: Part | None = None
    objects: Part | None = None
    permissions: Part | None = None
    consumer: Part | None = None
    target: Part | None = None

    def __post_init__(self) -> None:
        for name, (is_right, wanted) in _KINDS.items():
            value = getattr(self, name)
            if not is_right(value):
                found = "is missing" if value is None else f"is {value!r}"
                raise ConfigError(f"{name} of the plugin {self.scheme!r} {found}; it must be {wanted}", key=name)

    def check_driver(self) -> None:
        """Check that the driver is installed, without importing it.

        Raises:
            BackendNotInstalledError: it is missing; the text says what to install.
        """
        if self.driver_module and find_spec(self.driver_module) is None:
            raise BackendNotInstalledError(self.scheme, self.driver, self.extra)

    def connect(self, url: str) -> Backend:
        """Open the broker that *url* names.

        Raises:
            BackendNotInstalledError: the driver is missing.
            ConfigError: an option is unknown, of the wrong kind or out of range, or the plugin lacks a part.
            BackendUnavailableError: the broker cannot be reached.
        """
        return cast("Backend", self._call("backend", url))

    def examine(self, url: str, request: Request) -> Examination[Any] | None:
        """Connect to the live broker and return the checks of its settings, or None when the plugin has none.

        The checks change nothing on the broker and create nothing, not even the file or the group that *url* and
        *request* name.

        Raises:
            BackendNotInstalledError, ConfigError: as `connect`.
            BackendUnavailableError: the broker cannot be reached, or refuses the credentials; in one clear sentence.
        """
        return cast("Examination[Any] | None", self._call("examination", url, request))

    def describe_group(self, url: str, group: str, partition_count: int) -> Sequence[BrokerObject] | None:
        """Return a group's objects on the broker, without a server, or None when the plugin does not describe them.

        Args:
            url: The broker's URL.
            group: The group's name.
            partition_count: Its partitions; 0 takes the number of the URL.

        Raises:
            BackendNotInstalledError, ConfigError: as `connect`.
        """
        return cast("Sequence[BrokerObject] | None", self._call("objects", url, group, partition_count))

    def permissions_of(self, url: str, access: Access) -> str | None:
        """Return the rights of a user, without a server, or None where the plugin prints none.

        The text has the broker's own form: what an operator pastes into its shell or its configuration.

        Raises:
            BackendNotInstalledError, ConfigError: as `connect`.
            UsageError: a name in *access* cannot be that of a group or a target on this broker.
        """
        return cast("str | None", self._call("permissions", url, access))

    def open_consumer(self, url: str, topic: str, group: str) -> Any:
        """Return a plain consumer of *topic*, which is made if it is missing, or None when the plugin has none.

        Raises:
            BackendNotInstalledError, ConfigError, BackendUnavailableError: as `connect`.
        """
        return self._call("consumer", url, topic, group)

    def make_target(self, url: str, topic: str) -> bool:
        """Make a target topic if it is missing; returns False when the plugin makes none.

        Raises:
            BackendNotInstalledError, ConfigError, BackendUnavailableError: as `connect`.
            UsageError: the broker has no object of this name that txcore could make.
        """
        if self.target is None:
            return False
        self._call("target", url, topic)
        return True

    def _call(self, name: str, url: str, *arguments: object) -> Any:
        part = getattr(self, name)
        if part is None:
            return None
        settings = self.parse_url(url)
        if settings is None:
            raise ConfigError(f"parse_url of the plugin {self.scheme!r} returned no settings", key="parse_url")
        self.check_driver()
        if isinstance(part, str):
            module, _, attribute = part.partition(":")
            part = getattr(import_module(module), attribute, None) if _exists(module) else None
            if not callable(part):
                named = getattr(self, name)
                raise ConfigError(f"{name} of the plugin {self.scheme!r} is {named!r}, which is not there", key=name)
        return part(settings, *arguments)


def _exists(module: str) -> bool:
    """Return whether *module* can be found; one that fails in its own imports is found."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError as error:
        if error.name and module.startswith(error.name):  # a package before the last dot
            return False
        raise


def _is_part(value: object) -> bool:
    return callable(value) or (isinstance(value, str) and all(value.partition(":")))


_PART: Final = "a function, a class or its name as module:name"
_KINDS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "scheme": (lambda value: isinstance(value, str) and value != "", "a text"),
    "parse_url": (callable, "a function"),
    "backend": (_is_part, _PART),
    "options": (lambda value: value is None or isinstance(value, type), "a class"),
    "guarantees": (
        lambda value: isinstance(value, Sequence) and all(isinstance(each, Guarantees) for each in value),
        "a sequence of Guarantees",
    ),
    **dict.fromkeys(("driver", "driver_module", "extra"), (lambda value: isinstance(value, str), "a text")),
    **dict.fromkeys(
        ("examination", "objects", "permissions", "consumer", "target"),
        (lambda value: value is None or _is_part(value), _PART),
    ),
}
