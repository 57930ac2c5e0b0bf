"""A broker that is not there yet, or that refuses the credentials: clear errors, in time, and no secret in them."""

from __future__ import annotations

import time
from typing import Any

import pytest

import txcore
from txcore import BackendTimeoutError, BackendUnavailableError, ConfigError, Message, TransactionProducer
from txcore_conformance import brokers
from txcore_conformance.harness import Harness
from txcore_conformance.kit import COMMIT, PARTITION_COUNT, Answers, Kit, error_of

CLOSE_TIME_MAX_S = 10.0
SPARE_S = 5.0
GROUP = "somebodys-group"
WRONG_SECRET = "no-such-secret"  # noqa: S105 - nobody's
NAMES_IT = ("credential", "auth", "password", "access", "login", "permission")


def test_wrong_credentials_are_refused_in_time_and_stay_secret(harness: Harness) -> None:
    """The first call says what is wrong, close is bounded, and the password stands in no error and no repr."""
    name = getattr(harness, "broker_name", "")
    if not name:
        pytest.skip("there is no broker process that asks for credentials")
    try:
        broker = brokers.start(name, own=True, credentials=True)
    except brokers.ServerUnavailableError as error:
        if brokers.is_required(name):
            raise
        pytest.skip(f"no {name} of one's own: {error}")
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
    told = f"{error} {error!r} {error.__cause__!r} {backend!r}"
    assert WRONG_SECRET not in told
    assert any(word in told.lower() for word in NAMES_IT), told


def test_a_broker_that_is_absent_at_start_may_come_later(live: Kit) -> None:
    """Calls fail by name while it is away; the same connection works once it is there."""
    topic = live.topic()
    assert live.backend  # The group exists.
    harness: Any = live.harness
    harness.broker.stop()
    backend = live.harness.open()
    started_s = time.monotonic()
    error = error_of(lambda: backend.ensure_group(live.group), live.timeout_s)
    took_s = time.monotonic() - started_s
    assert isinstance(error, BackendUnavailableError | BackendTimeoutError), repr(error)
    harness.broker.start()
    live.until(lambda: error_of(lambda: backend.ensure_group(live.group), live.timeout_s) is None, "the first answer")
    live.enlist(backend)
    transaction = TransactionProducer(backend, live.group, policy=_policy(backend)).begin()
    transaction.publish(Message(topic, b"body"))
    transaction.prepare()
    live.history.committed(transaction.transaction_id)
    end = transaction.commit()
    print(f"{error!r} after {took_s:.1f} s; later {end.state.value}")
    live.sweep(live.checker(Answers(COMMIT)))
    live.history.causes_default = 1
    live.history.at_rest = True
    assert {b"body"} == set(live.bodies(topic))


def _policy(backend: Any) -> txcore.CheckPolicy:
    return txcore.CheckPolicy(immunity_s=backend.capabilities.release_time_max_s + SPARE_S)
