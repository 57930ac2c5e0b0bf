"""Sessions of the console: a signed cookie; the server keeps no state.

Any checker process with the same token accepts the cookie, so several may serve one address; another token ends every
session. The cookie does not hold the token. The same key makes the form tokens that a foreign page cannot guess.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Final

from txcore.clock import Clock, Randomness

COOKIE: Final = "txcore-console"
LIFETIME_S: Final = 12 * 3600
NAME_MAX: Final = 60
COOKIE_MAX: Final = 1_000
_PARTS: Final = 4


@dataclass(frozen=True, slots=True)
class Session:
    """An operator who showed the token, under a name of the operator's choice.

    Attributes:
        form_token: The secret that every form sends back.
    """

    name: str
    form_token: str


class Sessions:
    """Makes and reads session cookies. Thread safe.

    Args:
        token: The endpoint's token; "" for none, then there are no sessions.
    """

    def __init__(self, token: str, clock: Clock, randomness: Randomness) -> None:
        self._key = hmac.digest(token.encode(), b"txcore console session 1", "sha256") if token else b""
        self._clock = clock
        self._randomness = randomness

    def begin(self, name: str) -> str:
        """Return the cookie of a new session."""
        number = self._randomness.getrandbits(128)
        encoded = urlsafe_b64encode(name.encode()).decode()
        text = f"{self._clock.wall_ms() // 1000}.{number:032x}.{encoded}"
        return f"{text}.{self._sign('cookie', text)}"

    def read(self, cookie: str) -> Session | None:
        """Return the session of *cookie*; None when it is malformed, too old, or signed with another key."""
        parts = cookie.split(".")
        if not self._key or len(cookie) > COOKIE_MAX or len(parts) != _PARTS or not cookie.isascii():
            return None
        text, signature = ".".join(parts[:-1]), parts[-1]
        if not hmac.compare_digest(signature, self._sign("cookie", text)):
            return None
        age_s = self._clock.wall_ms() // 1000 - int(parts[0])
        if not -LIFETIME_S < age_s < LIFETIME_S:
            return None
        return Session(urlsafe_b64decode(parts[2]).decode(), self._sign("form", text))

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()


def name_of(text: str) -> str:
    """Return a name as it is kept in the log; "" unless it has letters or digits and is short."""
    name = " ".join(text.split())
    is_name = name.isprintable() and len(name) <= NAME_MAX and any(each.isalnum() for each in name)
    return name if is_name else ""
