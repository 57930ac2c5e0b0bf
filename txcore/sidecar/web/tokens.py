"""The endpoint's tokens: what each may do, which one a request shows, and the delay after wrong ones."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from txcore.clock import Clock

if TYPE_CHECKING:
    from txcore.config import Loaded

FAILURES_FREE: Final = 5
DELAY_MAX_S: Final = 60.0
FORGOTTEN_S: Final = 600.0
ADDRESSES_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Token:
    """A token and the rights that it gives.

    Attributes:
        secret: The token itself; "" is no token, and matches none.
        name: Its name in the log: the part of the configuration that names it.
        can_decide: Whether it may change state; without it, it may only read.
        groups: The groups that it may see; empty for all.
    """

    secret: str = field(repr=False)
    name: str = "http.token"
    can_decide: bool = True
    groups: frozenset[str] = frozenset()

    def covers(self, group: str) -> bool:
        """Return whether it may see *group*."""
        return not self.groups or group in self.groups


LOOPBACK: Final = Token("", "none", can_decide=False)
"""The rights of requests from this machine to an endpoint without a token."""


def tokens_of(loaded: Loaded) -> tuple[Token, ...]:
    """Return the tokens of a configuration; empty when it has none."""
    found = [Token(loaded.secret("http", "token"))]
    for name, section in loaded.config.http.tokens.items():
        secret = loaded.secret("http", "tokens", name, "token")
        can_decide = section.role == "operator"
        found.append(Token(secret, f"http.tokens.{name}", can_decide, frozenset(section.groups)))
    return tuple(token for token in found if token.secret)


def find_token(tokens: Sequence[Token], given: str) -> Token | None:
    """Return the token that *given* is; None for none. Takes the same time for every wrong one."""
    found = None
    for token in tokens:
        if hmac.compare_digest(given.strip().encode(), token.secret.encode()):
            found = token
    return found


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last_s: float = 0.0


class Throttle:
    """Delays the tries of an address after `FAILURES_FREE` wrong tokens: 1 s, 2 s, 4 s and so on. Thread safe.

    A try within the delay is refused at once, so that it occupies neither a thread nor a connection. Failures are
    forgotten after `FORGOTTEN_S` without one, or with a right token.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[str, _Failures] = {}
        self._lock = threading.Lock()

    def wait_s(self, address: str) -> float:
        """Return the time until *address* may try again; 0 for now."""
        with self._lock:
            failures = self._failures.get(address, _Failures())
            since_s = self._clock.elapsed_s() - failures.last_s
            if failures.count < FAILURES_FREE or since_s >= FORGOTTEN_S:
                return 0.0
            return max(min(2.0 ** (failures.count - FAILURES_FREE), DELAY_MAX_S) - since_s, 0.0)

    def failed(self, address: str) -> int:
        """Count a wrong token; return the number of them."""
        now_s = self._clock.elapsed_s()
        with self._lock:
            failures = self._failures.pop(address, _Failures())
            if now_s - failures.last_s >= FORGOTTEN_S:
                failures = _Failures()
            failures.count, failures.last_s = failures.count + 1, now_s
            self._failures[address] = failures
            if len(self._failures) > ADDRESSES_MAX:
                del self._failures[next(iter(self._failures))]
            return failures.count

    def succeeded(self, address: str) -> None:
        """Forget the failures of *address*."""
        with self._lock:
            self._failures.pop(address, None)
