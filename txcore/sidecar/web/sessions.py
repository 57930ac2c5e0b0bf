"""Sessions of the console: a signed cookie; the server keeps only those that were signed out.

Any checker process with the same token accepts the cookie, so several may serve one address; another token ends every
session. The cookie does not hold the token. The same key makes the form tokens that a foreign page cannot guess.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from txcore.clock import Clock, Randomness
from txcore.sidecar.web.tokens import Token

COOKIE: Final = "txcore-console"
LIFETIME_S: Final = 12 * 3600
NAME_MAX: Final = 60
COOKIE_MAX: Final = 1_000
ENDED_MAX: Final = 10_000
"""Ended sessions that are kept; only a client with a token can begin one."""
_PARTS: Final = 4


@dataclass(frozen=True, slots=True)
class Session:
    """A person signed in with a token, under a name of the person's choice.

    Attributes:
        form_token: The secret that every form sends back.
        token: The token that was shown, with its rights.
    """

    name: str
    form_token: str
    token: Token


class Sessions:
    """Makes, reads and ends session cookies. Thread safe.

    Args:
        tokens: The endpoint's tokens; without one there are no sessions.
    """

    def __init__(self, tokens: Sequence[Token], clock: Clock, randomness: Randomness) -> None:
        self._keys = {each: hmac.digest(each.secret.encode(), b"txcore console session 1", "sha256") for each in tokens}
        self._clock = clock
        self._randomness = randomness
        self._ended: dict[str, None] = {}  # by the signed text, the oldest first
        self._lock = threading.Lock()

    def begin(self, token: Token, name: str) -> str:
        """Return the cookie of a new session with the rights of *token*."""
        number = self._randomness.getrandbits(128)
        encoded = urlsafe_b64encode(name.encode()).decode()
        text = f"{self._clock.wall_ms() // 1000}.{number:032x}.{encoded}"
        return f"{text}.{_sign(self._keys[token], 'cookie', text)}"

    def read(self, cookie: str) -> Session | None:
        """Return the session of *cookie*; None when it is malformed, too old, ended, or signed with another key."""
        parts = cookie.split(".")
        if len(cookie) > COOKIE_MAX or len(parts) != _PARTS or not cookie.isascii():
            return None
        text, signature = ".".join(parts[:-1]), parts[-1]
        for token, key in self._keys.items():
            if hmac.compare_digest(signature, _sign(key, "cookie", text)):
                age_s = self._clock.wall_ms() // 1000 - int(parts[0])
                if not -LIFETIME_S < age_s < LIFETIME_S or text in self._ended:
                    return None
                return Session(urlsafe_b64decode(parts[2]).decode(), _sign(key, "form", text), token)
        return None

    def end(self, cookie: str) -> None:
        """End the session of *cookie* in this process, so that a copy of the cookie is worthless too."""
        if self.read(cookie) is None:
            return
        with self._lock:
            self._ended[cookie.rpartition(".")[0]] = None
            if len(self._ended) > ENDED_MAX:
                del self._ended[next(iter(self._ended))]


def _sign(key: bytes, purpose: str, text: str) -> str:
    return hmac.new(key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()


def name_of(text: str) -> str:
    """Return a name as it is kept in the log; "" unless it has letters or digits and is short."""
    name = " ".join(text.split())
    is_name = name.isprintable() and len(name) <= NAME_MAX and any(each.isalnum() for each in name)
    return name if is_name else ""
