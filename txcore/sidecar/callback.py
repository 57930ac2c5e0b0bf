"""The HTTP callback: a listener in any language. `docs/callback-openapi.json` describes its requests and answers.

Only a well-formed answer counts. Everything else (another status, a redirect, no JSON, an unknown state, a timeout)
is no answer: nothing is counted, and the half is asked about again later (R10).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from txcore.clock import Clock
from txcore.config import CallbackSection
from txcore.errors import BackendNotInstalledError, BackendUnavailableError, ConfigError
from txcore.ids import id_text
from txcore.listener import HalfView
from txcore.message import LocalTransactionState, Message
from txcore.sidecar.source_circuit import Question, SourceCircuit

VERSION: Final = 1
SIGNATURE_HEADER: Final = "txcore-signature"
ANSWER_BYTES_MAX: Final = 64 << 10
RETRY_AFTER_MAX_S: Final = 300.0
TRY_TIME_MIN_S: Final = 0.05
ERROR_TEXT_MAX: Final = 200
DOWN_STATUSES: Final = frozenset({401, 403, 429, 502, 503, 504})
"""Statuses that concern the whole service and not one half."""
RETRIED_STATUSES: Final = frozenset({429, 500, 502, 503, 504})


class Answer(msgspec.Struct):
    """The callback's answer; further keys are ignored."""

    state: LocalTransactionState


@dataclass(frozen=True, slots=True)
class Credentials:
    """The secrets and certificates of a request; never shown.

    Attributes:
        secret: Signs each request; "" for none.
        token: Sent as a bearer token; "" for none.
        ca_file, certificate_file, key_file: Paths; "" for none.
    """

    secret: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""


def encode_half(half: HalfView, *, bodies: bool) -> bytes:
    """Return the request's body: the half as JSON, binary parts in base64."""
    return msgspec.json.encode(
        {
            "version": VERSION,
            "transaction_id": id_text(half.transaction_id),
            "group": half.group,
            "check_times": half.check_times,
            "born_ms": half.born_ms,
            "messages": [_message(message, bodies=bodies) for message in half.messages],
        }
    )


def signature(secret: str, at_s: int, body: bytes) -> str:
    """Return the signature header: `t=<Unix seconds>,v1=<hex HMAC-SHA256 over "<t>.<body>">`."""
    mac = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256)
    return f"t={at_s},v1={mac.hexdigest()}"


def _message(message: Message, *, bodies: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "topic": message.topic,
        "key_base64": None if message.key is None else _base64(message.key),
        "headers": {name: value for name, value in (message.headers or {}).items() if isinstance(value, str)},
        "headers_base64": {
            name: _base64(value) for name, value in (message.headers or {}).items() if isinstance(value, bytes)
        },
    }
    if bodies:
        shown["body_base64"] = _base64(message.body)
    return shown


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


class _NoAnswerError(BackendUnavailableError):
    """The reason why a try brought no answer, and whether another try may succeed."""

    def __init__(self, message: str, *, is_worth_repeating: bool = False, is_down: bool = False) -> None:
        super().__init__(message)
        self.is_worth_repeating = is_worth_repeating
        self.is_down = is_down
        self.retry_after_s = 0.0


class HttpCallback:
    """Asks a URL about halves. Thread safe.

    Args:
        deadline_s: Longest time of one question, all tries together.
        connections_max: Requests at once.
        count: Counts the result of each request, by its name.
        observe: Records the seconds that an answered request took.

    Raises:
        BackendNotInstalledError: httpx is missing.
        ConfigError: a certificate cannot be used.
    """

    topics = None

    def __init__(
        self,
        section: CallbackSection,
        credentials: Credentials,
        circuit: SourceCircuit,
        clock: Clock,
        *,
        deadline_s: float,
        connections_max: int,
        count: Counter[str],
        observe: Callable[[float], None],
    ) -> None:
        try:
            import httpx  # noqa: PLC0415 - only groups with a callback need it
        except ImportError as error:
            raise BackendNotInstalledError("an HTTP callback", "httpx", "checker") from error
        self.circuit = circuit
        self._section = section
        self._credentials = credentials
        self._clock = clock
        self._deadline_s = deadline_s
        self._count = count
        self._observe = observe
        self._closing = threading.Event()
        self._httpx = httpx
        self._client = httpx.Client(
            verify=_tls(section.url, credentials),
            trust_env=False,  # a proxy in the environment is not meant for a neighbouring service
            follow_redirects=False,
            timeout=section.timeout_s,
            limits=httpx.Limits(max_connections=connections_max, max_keepalive_connections=connections_max),
        )

    def check_local_transaction(self, half: HalfView) -> LocalTransactionState:
        """Return the callback's answer.

        Raises:
            CheckPostponedError: it is down; the checker asks again later.
            BackendUnavailableError: no answer, with the reason; the URL's credentials are never in it.
        """
        deadline_s = self._clock.elapsed_s() + self._deadline_s
        body = encode_half(half, bodies=self._section.bodies)
        pause_s = self._section.retry_s
        for left in reversed(range(self._section.tries_max)):
            with self.circuit.question(max(deadline_s - self._clock.elapsed_s(), 0.0)) as question:
                answer = self._try(body, deadline_s, question)
            if isinstance(answer, LocalTransactionState):
                return answer
            has_time = deadline_s - self._clock.elapsed_s() > pause_s + TRY_TIME_MIN_S
            if not left or not answer.is_worth_repeating or not has_time or self._closing.wait(pause_s):
                raise answer
            pause_s *= 2
        raise AssertionError("tries_max is at least 1")

    def probe(self) -> str:
        """Return "" when a server listens at the URL, whatever it answers to OPTIONS; else the error."""
        try:
            with self._client.stream("OPTIONS", self._section.url):
                return ""
        except self._httpx.HTTPError as error:
            return _reason(error)

    def close(self) -> None:
        """Wake the threads that wait for another try, and close the connections."""
        self._closing.set()
        self._client.close()

    def _try(self, body: bytes, deadline_s: float, question: Question) -> LocalTransactionState | _NoAnswerError:
        began_s = self._clock.elapsed_s()
        try:
            answer = self._ask(body, deadline_s)
        except _NoAnswerError as error:
            if error.is_down:
                question.failure, question.retry_after_s = str(error), error.retry_after_s
            return error
        except self._httpx.HTTPError as error:
            question.failure = _reason(error)
            self._count["timeout" if isinstance(error, self._httpx.TimeoutException) else "unreachable"] += 1
            return _NoAnswerError(question.failure, is_worth_repeating=True, is_down=True)
        self._count["answered"] += 1
        self._observe(self._clock.elapsed_s() - began_s)
        return answer

    def _ask(self, body: bytes, deadline_s: float) -> LocalTransactionState:
        timeout_s = max(min(self._section.timeout_s, deadline_s - self._clock.elapsed_s()), TRY_TIME_MIN_S)
        until_s = self._clock.elapsed_s() + timeout_s
        with self._client.stream(
            "POST", self._section.url, content=body, headers=self._headers(body), timeout=timeout_s
        ) as response:
            if response.status_code != self._httpx.codes.OK:
                self._count["refused"] += 1
                raise self._refusal(response)
            data = b""
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > ANSWER_BYTES_MAX:
                    self._count["malformed"] += 1
                    raise _NoAnswerError(f"the callback answered more than {ANSWER_BYTES_MAX} bytes")
                if self._clock.elapsed_s() > until_s:
                    self._count["timeout"] += 1
                    raise _NoAnswerError("the callback did not finish its answer in time", is_down=True)
        try:
            return msgspec.json.decode(data, type=Answer).state
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._count["malformed"] += 1
            said = str(error)[:ERROR_TEXT_MAX]
            raise _NoAnswerError(f"the callback's answer has no usable state: {said}") from None

    def _refusal(self, response: Any) -> _NoAnswerError:
        status = response.status_code
        error = _NoAnswerError(
            f"the callback answered with status {status}",
            is_worth_repeating=status in RETRIED_STATUSES,
            is_down=status in DOWN_STATUSES,
        )
        asked = response.headers.get("retry-after", "")
        if asked.isascii() and asked.isdigit():
            error.retry_after_s = min(float(asked[:6]), RETRY_AFTER_MAX_S)
            error.is_worth_repeating = False
        return error

    def _headers(self, body: bytes) -> dict[str, str]:
        headers = {"content-type": "application/json", "accept": "application/json"}
        if self._credentials.token:
            headers["authorization"] = f"Bearer {self._credentials.token}"
        if self._credentials.secret:
            headers[SIGNATURE_HEADER] = signature(self._credentials.secret, self._clock.wall_ms() // 1000, body)
        return headers


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _tls(url: str, credentials: Credentials) -> ssl.SSLContext | bool:
    if not url.startswith("https:"):
        return False
    try:
        context = ssl.create_default_context(cafile=credentials.ca_file or None)
        if credentials.certificate_file:
            context.load_cert_chain(credentials.certificate_file, credentials.key_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the callback's certificates cannot be used: {error}", key="callback") from error
    return context
