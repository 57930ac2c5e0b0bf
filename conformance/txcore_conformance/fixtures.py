"""The suite's fixtures, and the oracle after every test; `pytest_plugin` registers them when a harness is given."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import pytest

from txcore.port import Backend
from txcore_conformance.harness import Harness
from txcore_conformance.kit import Kit
from txcore_conformance.pytest_plugin import LONG_MODULES, load_harness, missing_promise
from txcore_conformance.required import obtained

VIOLATIONS_SHOWN_MAX: Final = 20
WAITS_MAX: Final = 15
"""Longest time of a test, in times of `Harness.timeout_s`; a producer waits for its outcome as long as it takes."""

AGAIN_S: Final = 5.0  # the next wait of the same test, if it continues


@pytest.fixture(scope="session")
def harness_name(request: pytest.FixtureRequest) -> str:
    """One value of `--harness`; tests with a `harness` fixture of their own do not use it, and run once."""
    return str(request.param)


@pytest.fixture(scope="session")
def harness(harness_name: str) -> Iterator[Harness]:
    """Harness of the backend under test, started once."""
    made = load_harness(harness_name)()
    obtained(getattr(made, "broker_name", ""), made.start)
    yield made
    made.stop()


@pytest.fixture
def kit(harness: Harness, request: pytest.FixtureRequest) -> Iterator[Kit]:
    """Kit with a new group on the backend under test."""
    made = Kit(harness)
    try:
        _skip_what_is_not_promised(made, request)
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def private(harness: Harness) -> Iterator[Harness]:
    """Harness of the backend under test on a private broker, which tests may kill, freeze and cut off."""
    made = obtained(getattr(harness, "broker_name", ""), harness.private)
    if made is None:
        pytest.skip("there is no broker process to kill, freeze or cut off")
    yield made
    made.stop()


@pytest.fixture
def live(private: Harness, request: pytest.FixtureRequest) -> Iterator[Kit]:
    """Kit with a group on the private broker, which the fixture restores afterwards."""
    made = Kit(private)
    try:
        _skip_what_is_not_promised(made, request)
        yield made
    finally:
        restore(private)
        made.close()


@contextmanager
def bounded(time_max_s: float) -> Iterator[None]:
    """Fail what still waits after *time_max_s*, as it does when the backend never settles an item."""

    def expire(*_: object) -> None:
        raise AssertionError(
            f"the test still waits after {time_max_s:g} s: the backend has not settled an item of a batch, or a Future "
            "of it has no result; the first lines of this failure show which call waits"
        )

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, time_max_s, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def restore(harness: Harness) -> None:
    """Let a private broker run, and its proxy forward, after any fault of a test."""
    broker: Any = harness.broker  # type: ignore[attr-defined]
    broker.resume()
    if not broker.is_running:
        broker.kill()
        broker.start()
    broker.proxy.forward()


@pytest.fixture
def backend(kit: Kit) -> Backend:
    """Connection of the test to its existing group."""
    return kit.backend


@pytest.fixture
def group(kit: Kit) -> str:
    """Name of the test's group, which no other test uses."""
    return kit.group


@pytest.fixture
def topic(kit: Kit) -> str:
    """Name of an existing, empty target topic."""
    return kit.topic()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Any]:
    """Engine of SQLAlchemy on a new SQLite file with the table `orders`."""
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="the database style needs SQLAlchemy")
    made = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'service.db'}")
    with made.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE orders (name TEXT NOT NULL)"))
    yield made
    made.dispose()


@pytest.fixture
def fence(engine: Any) -> Any:
    """Fence on the file of `engine`."""
    from txcore import SqlFence  # noqa: PLC0415 - the fixture `engine` requires SQLAlchemy

    made = SqlFence(engine)
    made.create()
    return made


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Judge the test's groups after its body has passed; a broken invariant fails the test itself."""
    if "harness_name" not in pyfuncitem.funcargs:
        return (yield)  # A backend's own test, which may break invariants.
    harness: Any = pyfuncitem.funcargs["harness"]
    is_long = pyfuncitem.path.stem.startswith(LONG_MODULES)
    with nullcontext() if is_long else bounded(WAITS_MAX * harness.timeout_s):
        result = yield
    own = (pyfuncitem.funcargs.get("harness"), pyfuncitem.funcargs.get("private"))
    for kit in (pyfuncitem.funcargs.get("kit"), pyfuncitem.funcargs.get("live")):
        if not isinstance(kit, Kit) or not any(each is kit.harness for each in own):
            continue
        kit.stop_checkers()
        broken = kit.judge()
        assert not broken, "\n".join(["broken invariants:", *broken[:VIOLATIONS_SHOWN_MAX]])
    return result


def _skip_what_is_not_promised(kit: Kit, request: pytest.FixtureRequest) -> None:
    for marker in request.node.iter_markers("requires"):
        reason = missing_promise(kit.promises, marker.args)
        if reason is not None:
            pytest.skip(reason)
    if request.node.get_closest_marker("needs_process") and not kit.harness.url:
        pytest.skip("no other process can reach this backend")
