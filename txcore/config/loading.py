"""Loading a configuration: sources together, converted, names looked up, secrets fetched, all mistakes at once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Final
from urllib.parse import SplitResult, urlsplit

from msgspec.structs import replace

from txcore.audit.verdicts import Verdict
from txcore.config.audit import ALL, EffectsSection
from txcore.config.conversion import convert
from txcore.config.lines import Path
from txcore.config.problems import ConfigFileError, Problem, closest, key_text
from txcore.config.schema import CallbackSection, Config, GroupSection, HttpSection
from txcore.config.sources import (
    FILE_NAME,
    PREFIX,
    Raw,
    Simple,
    add_environment,
    add_settings,
    add_simple,
    is_simple,
    read_file,
)
from txcore.errors import ConfigError

TOKEN_SIZE_MIN: Final = 16
SECRET_BYTES_MAX: Final = 64 << 10
SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.ASCII | re.IGNORECASE)
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration without mistakes.

    Attributes:
        config: The structs; URLs that may hold a password are masked there.
        fetched: The secrets, by the path of the setting without its `_file` or `_env`; never shown.
    """

    config: Config
    fetched: Mapping[Path, str] = field(repr=False)
    _raw: Raw = field(repr=False)

    @property
    def file(self) -> FilePath | None:
        """The file of the configuration; None without one."""
        return self._raw.file

    def secret(self, *path: str) -> str:
        """Return a URL, token or shared secret; "" when there is none."""
        return self.fetched.get(path, "")

    def backend_of(self, group: str) -> str:
        """Return the name of the group's backend."""
        return self.config.groups[group].backend or next(iter(self.config.backends))

    def problem(self, path: Path, text: str) -> Problem:
        """Return a problem that was found later, with the place of the setting."""
        return Problem(key_text(path), self._raw.where(path), text)


def load(
    file: FilePath | str | None = None,
    *,
    simple: Simple | None = None,
    settings: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    needs_groups: bool = True,
) -> Loaded:
    """Read a configuration.

    Args:
        file: The TOML file; None for TXCORE_CONFIG, else `txcore.toml` in the working directory.
        simple: One group without a file.
        settings: Overrides, each `section.key=value`: a TOML value, or plain text where the key takes a text.
        environment: The environment to use instead of the process's own.
        needs_groups: Whether a configuration without a group is a mistake.

    Raises:
        ConfigFileError: with every mistake that was found.
        ConfigError: neither a file nor one-group settings, or both.
    """
    environment = os.environ if environment is None else environment
    raw = _sources(file, simple or Simple(), environment)
    add_environment(raw, environment)
    add_settings(raw, settings)
    problems: list[Problem] = []

    def report(path: Path, text: str) -> None:
        problems.append(Problem(key_text(path), raw.where(path), text))

    config = convert(raw.table, Config, report)
    reader = _Reader(config, environment, raw, problems)
    reader.read(needs_groups=needs_groups)
    if problems:
        raise ConfigFileError(problems)
    backends = {
        name: replace(each, url=masked(reader.fetched["backends", name, "url"]))
        for name, each in config.backends.items()
    }
    databases = {
        name: replace(each, url=masked(reader.fetched["databases", name, "url"]))
        for name, each in config.databases.items()
    }
    return Loaded(replace(config, backends=backends, databases=databases), reader.fetched, raw)


def masked(url: str) -> str:
    """Return *url* without its password and without options, any of which may be a secret.

    A user without a password is hidden too, as NATS takes it for a token.
    """
    scheme, separator, rest = url.partition("://")
    credentials, at, place = rest.rpartition("@")  # the last one, as a password may hold a `?`
    user, colon, _ = credentials.partition(":")
    login = f"{user}:***" if colon else "***" if at else ""
    return f"{scheme}{separator}{login}{at}{place.partition('?')[0]}"


def _sources(file: FilePath | str | None, simple: Simple, environment: Mapping[str, str]) -> Raw:
    named = file or environment.get(f"{PREFIX}CONFIG", "")
    one_group = is_simple(simple, environment)
    if named and one_group:
        raise ConfigError(f"{one_group} describes a group without a file, but {named} is given too: use one of them")
    if one_group:
        raw = Raw()
        add_simple(raw, simple, environment)
        return raw
    path = FilePath(named or FILE_NAME)
    if not named and not path.exists():
        raise ConfigError(
            f"there is no {FILE_NAME} here: write one with `txcore config init`, name one with --config, "
            "or describe one group with --broker, --group and --database",
            key="config",
        )
    return read_file(path)


class _Reader:
    """Looks names up and fetches secrets; adds to *problems*."""

    def __init__(self, config: Config, environment: Mapping[str, str], raw: Raw, problems: list[Problem]) -> None:
        self.config = config
        self.fetched: dict[Path, str] = {}
        self._environment = environment
        self._raw = raw
        self._problems = problems

    def read(self, *, needs_groups: bool) -> None:
        for kind in ("backends", "databases"):
            for name in getattr(self.config, kind):
                self._url((kind, name))
        self._http()
        if needs_groups and not self.config.groups and "groups" not in self._raw.table:
            self._report(("groups",), "no group to check; add one: [groups.NAME]")
        for name, group in self.config.groups.items():
            self._group(("groups", name), group)
        self._audit()

    def _report(self, path: Path, text: str) -> None:
        self._problems.append(Problem(key_text(path), self._raw.where(path), text))

    def _audit(self) -> None:
        """Look up the names under `[audit]`, and the ending of its file of metrics."""
        config = self.config
        textfile = config.audit.textfile
        if textfile and FilePath(textfile).suffix != ".prom":
            self._report(
                ("audit", "textfile"), f"{textfile!r} must end with .prom: the node exporter reads no other file"
            )
        known: dict[str, Mapping[str, object]] = {
            "rules": Verdict.__members__,
            "backends": config.backends,
            "groups": config.groups,
            "effects": config.groups,
        }
        for section, names in known.items():
            for name in getattr(config.audit, section):
                if name not in names:
                    self._report(("audit", section, name), f"there is no {name}{closest(name, names)}")
        for name, group in config.audit.groups.items():
            for section in ("backends", "databases"):
                for each in getattr(group, section):
                    if each not in known.get(section, config.databases):
                        self._report(("audit", "groups", name, section), f"there is no [{section}.{each}]")
        for name, effects in config.audit.effects.items():
            self._effects(("audit", "effects", name), effects, config.groups.get(name))
        for name, backend in config.audit.backends.items():
            if isinstance(backend.topics, str) and backend.topics != ALL:
                self._report(("audit", "backends", name, "topics"), f'must be a list of topics, or "{ALL}"')
            for tap in backend.taps:
                if not all(part.strip() for part in tap.partition("=")):
                    self._report(("audit", "backends", name, "taps"), f"{tap!r} is no topic=stream")

    def _effects(self, path: Path, effects: EffectsSection, group: GroupSection | None) -> None:
        """Look up the databases of both ends of a group."""
        databases = self.config.databases
        if not effects.business and not effects.consumers:
            self._report(path, "names neither business rows nor consumers: there is nothing to compare")
        own = group.database if group is not None else ""
        extra = self.config.audit.groups.get(path[-1])
        if effects.business and not own and not (extra is not None and extra.databases):
            self._report((*path, "business"), f"{path[-1]} has no database with fence rows to compare with")
        named = [((*path, "database"), effects.database or own)] if effects.business else []
        consumers = effects.consumers.items()
        named += [((*path, "consumers", name, "database"), each.database or own) for name, each in consumers]
        for key, name in named:
            if not name:
                self._report(key, f"is missing, and {path[-1]} has no database of its own")
            elif name not in databases:
                self._report(key, f"there is no [databases.{name}]{closest(name, databases)}")

    def _http(self) -> None:
        http = self.config.http
        self._files(("http",), http, ("certificate_file", "key_file"))
        self._token(("http", "token"))
        for name, section in http.tokens.items():
            place = ("http", "tokens", name)
            self._token((*place, "token"))
            if not (section.token_file or section.token_env):
                self._report(place, "needs token_file or token_env")
            known = self.config.groups
            for group in section.groups:
                if group not in known:
                    self._report((*place, "groups"), f"there is no [groups.{group}]{closest(group, known)}")
        if http.enabled and http.host not in LOOPBACK:
            has_one = http.token_file or http.token_env or http.tokens
            if not has_one:
                self._report(
                    ("http", "host"), f"{http.host} is no loopback address: set http.token_file or http.token_env"
                )

    def _token(self, path: Path) -> None:
        """Fetch a token of the endpoint; refuse one that can be guessed, or that another name has too."""
        self._secret(path)
        token = self.fetched.get(path, "")
        if token and len(token) < TOKEN_SIZE_MIN:
            text = f"the token has fewer than {TOKEN_SIZE_MIN} characters: make one with `openssl rand -hex 32`"
            self._report(path, text)
        if token and [other for other in self.fetched if other[0] == "http" and self.fetched[other] == token][1:]:
            self._report(path, "another name has the same token; each needs its own")

    def _url(self, path: Path) -> None:
        section = getattr(self.config, path[0])[path[1]]
        given = [key for key in ("url", "url_file", "url_env") if getattr(section, key)]
        if not given and not self._has_problem(path):
            self._report(path, "needs url, url_file or url_env")
        elif len(given) > 1:
            self._report((*path, given[1]), f"{given[0]} is given too; keep one of them")
        elif given == ["url"]:
            self._keep_url(path, section.url)
        elif given:
            self._secret((*path, "url"))
            self._keep_url(path, self.fetched.get((*path, "url"), ""))

    def _keep_url(self, path: Path, url: str) -> None:
        if url and not SCHEME.match(url):
            self._report((*path, "url"), "is no URL; it looks like scheme://…")
        self.fetched[*path, "url"] = url

    def _has_problem(self, path: Path) -> bool:
        prefix = f"{key_text(path)}."
        return any(problem.key.startswith(prefix) for problem in self._problems)

    def _secret(self, path: Path) -> None:
        """Fetch the secret that `<path>_file` or `<path>_env` names."""
        section = self.config
        for part in path[:-1]:
            section = section[part] if isinstance(section, dict) else getattr(section, part)
        file_key, variable_key = f"{path[-1]}_file", f"{path[-1]}_env"
        file, variable = getattr(section, file_key), getattr(section, variable_key)
        if file and variable:
            self._report((*path[:-1], variable_key), f"{file_key} is given too; keep one of them")
        elif file:
            self._keep(path, (*path[:-1], file_key), self._contents((*path[:-1], file_key), file))
        elif variable:
            value = self._environment.get(variable)
            if value is None:
                self._report((*path[:-1], variable_key), f"the environment has no {variable}")
            else:
                self._keep(path, (*path[:-1], variable_key), value)

    def _keep(self, path: Path, key: Path, value: str | None) -> None:
        if value is not None and not value.strip():
            self._report(key, "the file or variable is empty")
        elif value is not None:
            self.fetched[path] = value.strip()

    def _contents(self, key: Path, name: str) -> str | None:
        try:
            with self._place(name).open("rb") as file:
                return file.read(SECRET_BYTES_MAX).decode()
        except OSError as error:
            self._report(key, f"{name} cannot be read: {error.strerror}")
        except UnicodeDecodeError:
            self._report(key, f"{name} is no UTF-8 text")
        return None

    def _place(self, name: str) -> FilePath:
        """Return the path of a file, which is relative to the configuration file."""
        return (self._raw.file.parent if self._raw.file is not None else FilePath()) / name

    def _group(self, path: Path, group: GroupSection) -> None:
        backends, databases = self.config.backends, self.config.databases
        if group.backend and group.backend not in backends:
            self._report(
                (*path, "backend"), f"there is no [backends.{group.backend}]{closest(group.backend, backends)}"
            )
        elif not group.backend and len(backends) != 1:
            hint = f"say which: {', '.join(backends)}" if backends else "add one: [backends.main] with its url"
            self._report(path, f"needs a backend; {hint}")
        if group.database and group.database not in databases:
            known = closest(group.database, databases)
            self._report((*path, "database"), f"there is no [databases.{group.database}]{known}")
        if not (group.database or group.listener or group.callback or self._has_problem(path)):
            self._report(path, "no source of answers: give it a database (its fence), a listener or a callback")
        if group.listener and group.callback:
            self._report((*path, "callback"), "a listener is given too; one of them answers for halves without a fence")
        if group.listener and not all(part.strip() for part in _attribute(group.listener)):
            self._report((*path, "listener"), f"{group.listener!r} is no module:attribute")
        if group.callback is not None:
            self._callback((*path, "callback"), group.callback, group)

    def _callback(self, path: Path, callback: CallbackSection, group: GroupSection) -> None:
        parts = _http_parts(callback.url)
        if parts is None:
            if not self._has_problem(path):
                self._report((*path, "url"), "must be an http or https URL")
        elif parts.username or parts.password:
            self._report((*path, "url"), "holds credentials; use token_file or token_env")
        if callback.timeout_s >= group.limits.check_deadline_s:
            deadline_s = group.limits.check_deadline_s
            self._report((*path, "timeout_s"), f"must be below limits.check_deadline_s, which is {deadline_s:g}")
        self._secret((*path, "secret"))
        self._secret((*path, "token"))
        self._files(path, callback, ("ca_file", "certificate_file", "key_file"))

    def _files(self, path: Path, section: CallbackSection | HttpSection, keys: tuple[str, ...]) -> None:
        """Find the PEM files of a section."""
        for key in keys:
            name = getattr(section, key)
            if name and not self._place(name).is_file():
                self._report((*path, key), f"there is no file {name}")
            elif name:
                self.fetched[*path, key] = str(self._place(name))
        if section.key_file and not section.certificate_file:
            self._report((*path, "key_file"), "needs certificate_file beside it")


def _http_parts(url: str) -> SplitResult | None:
    """Return the parts of an http or https URL; None for any other text."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if is_usable else None


def _attribute(listener: str) -> tuple[str, str]:
    module, _, attribute = listener.partition(":")
    return module, attribute
