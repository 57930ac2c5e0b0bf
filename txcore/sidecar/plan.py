"""The plan of one group, resolved from the configuration; two equal plans need no restart."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import msgspec

from txcore.checker.limits import Limits
from txcore.config import CallbackSection, CheckerSection, DatabaseSection, GroupSection, Loaded
from txcore.message import CheckPolicy
from txcore.sidecar.callback import Credentials


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """See the module.

    Attributes:
        backend, database: Their names in the configuration; *database* is "" for none.
        backend_url, database_url: With their secrets.
    """

    name: str
    section: GroupSection
    checker: CheckerSection
    backend: str
    backend_url: str = field(repr=False)
    database: str = ""
    database_url: str = field(default="", repr=False)
    database_section: DatabaseSection = field(default_factory=DatabaseSection)
    credentials: Credentials = field(default_factory=Credentials)

    @property
    def callback(self) -> CallbackSection | None:
        """The HTTP callback's settings."""
        return self.section.callback

    @property
    def policy(self) -> CheckPolicy:
        """The policy for halves that carry none of their own."""
        section = self.section.policy
        return CheckPolicy(interval_s=section.interval_s, check_max=section.check_max)

    @property
    def limits(self) -> Limits:
        """The checker's bounds."""
        values = msgspec.structs.asdict(self.section.limits)
        return Limits(**values, immunity_min_s=self.section.policy.immunity_s)

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the sources of answers: "fence", "listener", "callback"."""
        section = self.section
        configured = {"fence": section.database, "listener": section.listener, "callback": section.callback}
        return tuple(name for name, value in configured.items() if value)


def plans_of(loaded: Loaded) -> dict[str, GroupPlan]:
    """Return the plan of each group."""
    return {name: _plan(loaded, name, section) for name, section in loaded.config.groups.items()}


def _plan(loaded: Loaded, name: str, section: GroupSection) -> GroupPlan:
    config, backend = loaded.config, loaded.backend_of(name)
    place = ("groups", name, "callback")
    credentials = Credentials(**{key: loaded.secret(*place, key) for key in asdict(Credentials())})
    return GroupPlan(
        name,
        section,
        config.checker,
        backend,
        loaded.secret("backends", backend, "url"),
        section.database,
        loaded.secret("databases", section.database, "url"),
        config.databases.get(section.database, DatabaseSection()),
        credentials,
    )
