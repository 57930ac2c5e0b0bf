"""The suite's fixtures, and the oracle behind every test; registered by `pytest_plugin` when a harness is given."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from txcore.port import Backend
from txcore_conformance.harness import Harness
from txcore_conformance.kit import Kit
from txcore_conformance.pytest_plugin import load_harness, missing_promise

VIOLATIONS_SHOWN_MAX: Final = 20


@pytest.fixture(scope="session")
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """The backend under test, brought up once."""
    made = load_harness(request.param)()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def kit(harness: Harness, request: pytest.FixtureRequest) -> Iterator[Kit]:
    """One group of its own, and everything a test does with it."""
    made = Kit(harness)
    try:
        _skip_what_is_not_promised(made, request)
        yield made
    finally:
        made.close()


@pytest.fixture
def backend(kit: Kit) -> Backend:
    """A connection of the test's own, with its group in place."""
    return kit.backend


@pytest.fixture
def group(kit: Kit) -> str:
    """The name of the test's group, which no other test uses."""
    return kit.group


@pytest.fixture
def topic(kit: Kit) -> str:
    """An existing, empty target topic."""
    return kit.topic()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Any]:
    """A SQLAlchemy engine on a fresh SQLite file with the table `orders`."""
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="the database style needs SQLAlchemy")
    made = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'service.db'}")
    with made.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE orders (name TEXT NOT NULL)"))
    yield made
    made.dispose()


@pytest.fixture
def fence(engine: Any) -> Any:
    """The fence on that file."""
    from txcore import SqlFence  # noqa: PLC0415 - only here is SQLAlchemy known to be installed

    made = SqlFence(engine)
    made.create()
    return made


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Judge the test's group once its body has passed; a broken invariant fails the test itself."""
    result = yield
    kit = pyfuncitem.funcargs.get("kit")
    if isinstance(kit, Kit) and pyfuncitem.funcargs.get("harness") is kit.harness:
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
