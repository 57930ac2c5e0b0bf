"""A broker that is not started yet or refuses the credentials: clear errors in time, without a secret in them."""

from __future__ import annotations

import time
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

import txcore
from txcore import BackendTimeoutError, BackendUnavailableError, ConfigError, Message, TransactionProducer
from txcore.port import Backend
from txcore_conformance import brokers
from txcore_conformance.brokers.harness import BrokerHarness
from txcore_conformance.harness import Harness
from txcore_conformance.kit import COMMIT, PARTITION_COUNT, Answers, Kit, error_of
from txcore_conformance.required import obtained

CLOSE_TIME_MAX_S = 10.0
SPARE_S = 5.0
AT_PROXY = 3
GROUP = "somebodys-group"
WRONG_SECRET = "no-such-secret"  # noqa: S105 - no real password
NAMES_IT = ("credential", "auth", "password", "access", "login", "permission")


def test_wrong_credentials_are_refused_in_time_and_stay_secret(harness: Harness) -> None:
    """The first call's error names the problem, close is bounded, and no error or repr contains the password."""
    if not isinstance(harness, BrokerHarness):
        pytest.skip("there is no broker process that asks for credentials")
    broker = obtained(harness.broker_name, lambda: harness.new_broker(own=True, credentials=True))
    try:
        right = broker.credentials_url
        backend = txcore.connect(right)
        assert error_of(lambda: backend.ensure_group(GROUP, PARTITION_COUNT), harness.timeout_s) is None
        backend.close().result(2 * CLOSE_TIME_MAX_S)
        _try_wrong(right.replace(f":{brokers.PASSWORD}@", f":{WRONG_SECRET}@"), harness.timeout_s)
    finally:
        broker.remove()


def _try_wrong(url: str, timeout_s: float) -> None:
    assert WRONG_SECRET in url
    backend = txcore.connect(url)
    error = error_of(lambda: backend.ensure_group(GROUP, PARTITION_COUNT), timeout_s)
    started_s = time.monotonic()
    backend.close(CLOSE_TIME_MAX_S / 2).result(CLOSE_TIME_MAX_S)
    assert time.monotonic() - started_s < CLOSE_TIME_MAX_S
    assert isinstance(error, ConfigError | BackendUnavailableError | BackendTimeoutError), repr(error)
    print(f"refused: {error}")
    text = f"{error} {error!r} {error.__cause__!r} {backend!r}"
    assert WRONG_SECRET not in text
    assert any(word in text.lower() for word in NAMES_IT), text


def test_a_broker_that_is_absent_at_start_may_come_later(live: Kit) -> None:
    """Calls raise the named errors while the broker is absent; the same connections work when it is started.

    One connection is to a port without a listener, the others are to a proxy that accepts and resets at once, like a
    load balancer without running servers.
    """
    topic = live.topic()
    assert live.backend  # The group exists.
    harness: Any = live.harness
    proxied_url = harness.broker.proxied_url + harness.url_options
    harness.broker.stop()
    backends = [harness.open(), *(harness.open(proxied_url) for _ in range(AT_PROXY))]
    started_s = time.monotonic()
    futures = [backend.ensure_group(live.group) for backend in backends]
    errors = [error_of(partial(_same, future), live.timeout_s) for future in futures]
    print(f"{errors[0]!r} after {time.monotonic() - started_s:.1f} s")
    assert [] == [error for error in errors if not isinstance(error, BackendUnavailableError | BackendTimeoutError)]
    harness.broker.start()
    for backend in backends:
        live.until(partial(_is_there, backend, live), "the broker's answer")
        live.enlist(backend)
        transaction = TransactionProducer(backend, live.group, policy=_policy(backend)).begin()
        transaction.publish(Message(topic, b"body"))
        transaction.prepare()
        live.history.committed(transaction.transaction_id)
        print(f"later {transaction.commit().state.value}")
    live.sweep(live.checker(Answers(COMMIT)))
    live.history.causes_default = 1
    live.history.at_rest = True
    assert {b"body"} == set(live.bodies(topic))


def _same(future: Future[int]) -> Future[int]:
    return future


def _is_there(backend: Backend, live: Kit) -> bool:
    return error_of(lambda: backend.ensure_group(live.group), live.timeout_s) is None


def _policy(backend: Any) -> txcore.CheckPolicy:
    return txcore.CheckPolicy(immunity_s=backend.capabilities.release_time_max_s + SPARE_S)
