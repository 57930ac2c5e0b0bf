"""The check policies of a producer and of its messages."""

from __future__ import annotations

from collections.abc import Sequence

from txcore import arguments
from txcore.errors import ConfigError
from txcore.message import CheckPolicy


def require_room(policy: CheckPolicy, margin_s: float) -> None:
    """Refuse an immunity that leaves a producer no time.

    Raises:
        ConfigError: `immunity_s` is not longer than *margin_s*, or *policy* is no policy.
    """
    arguments.require_type("policy", policy, CheckPolicy, "a txcore.CheckPolicy")
    if policy.immunity_s <= margin_s:
        raise ConfigError(
            f"immunity_s is {policy.immunity_s:g} but this backend may take {margin_s:g} s to deliver; "
            f"choose an immunity above {margin_s:g} s",
            key="immunity_s",
        )


def transaction_policy(overrides: Sequence[CheckPolicy]) -> CheckPolicy:
    """Return the policy of a transaction: the longest immunity and interval and the most checks of its messages."""
    return CheckPolicy(
        immunity_s=max(policy.immunity_s for policy in overrides),
        interval_s=max(policy.interval_s for policy in overrides),
        check_max=max(policy.check_max for policy in overrides),
    )
