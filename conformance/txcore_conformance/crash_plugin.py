"""The pytest plugin for applications: it kills their transaction at every step, in a test or by command.

    def test_an_order_is_placed_and_announced_or_neither(txcore_crash):
        txcore_crash(PlaceOrder)            # a class, see `scenario`

    pytest -p txcore_conformance.crash_plugin --txcore-crash shop.crashes:PlaceOrder     # the same without a test
    pytest --txcore-crash-on txcore_kafka.testing:KafkaHarness tests/test_crashes.py     # on a real broker

A project loads it by `-p`, or by `pytest_plugins = ["txcore_conformance.crash_plugin"]` in its top `conftest.py`.
By default the broker is a SQLite file. `TXCORE_KAFKA_URL` (and so on) name brokers that run already.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from txcore_conformance.scenario import Scenario
    from txcore_conformance.scenario_crash import Verdict

EMBEDDED: Final = "txcore_sqlite.testing:SqliteHarness"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two options."""
    group = parser.getgroup("txcore")
    group.addoption(
        "--txcore-crash",
        action="append",
        default=[],
        metavar="MODULE:CLASS",
        help="kill this txcore_conformance.scenario.Scenario at every step, instead of running tests; may be repeated",
    )
    group.addoption(
        "--txcore-crash-on",
        default=EMBEDDED,
        metavar="MODULE:CLASS",
        help="the harness of the broker on which scenarios are killed; a SQLite file by default",
    )


class CrashItem(pytest.Item):
    """One scenario that the command line names."""

    def __init__(self, *, scenario: str, **options: Any) -> None:
        super().__init__(**options)
        self._scenario = scenario

    def runtest(self) -> None:
        """Kill the scenario at every step."""
        verdict = kill_at_every_step(load_scenario(self._scenario), self.config.getoption("txcore_crash_on"))
        _judge(verdict)
        self.add_report_section("call", "txcore crash", str(verdict))

    def reportinfo(self) -> tuple[str, int | None, str]:
        """Return the name of the item."""
        return self._scenario, None, f"txcore crash: {self._scenario}"


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run only the scenarios that the command line names; without any, do nothing."""
    names = config.getoption("txcore_crash")
    if names:
        folder = str(config.invocation_params.dir)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        if items:
            config.hook.pytest_deselected(items=list(items))
        items[:] = [CrashItem.from_parent(session, name=name, scenario=name) for name in names]


@pytest.fixture
def txcore_crash(pytestconfig: pytest.Config) -> Callable[[type[Scenario]], Verdict]:
    """Kill a scenario at every step; the test fails with the report if database and messages differ after a kill."""

    def crash(scenario: type[Scenario]) -> Verdict:
        verdict = kill_at_every_step(scenario, pytestconfig.getoption("txcore_crash_on"))
        print(verdict)
        _judge(verdict)
        return verdict

    return crash


def kill_at_every_step(scenario: type[Scenario], harness_name: str = EMBEDDED) -> Verdict:
    """Return the findings of a scenario, on a broker that is started for it.

    Raises:
        UsageError: SQLAlchemy is not installed.
    """
    if importlib.util.find_spec("sqlalchemy") is None:
        raise pytest.UsageError('txcore_crash needs SQLAlchemy; install it with: pip install "txcore[sql]"')
    from txcore_conformance.crash import started  # noqa: PLC0415 - needed only for kills
    from txcore_conformance.scenario_crash import ScenarioCrash  # noqa: PLC0415

    with started(harness_name) as harness:
        return ScenarioCrash(scenario, harness).run()


def load_scenario(name: str) -> type[Scenario]:
    """Return the scenario that `module:Class` names.

    Raises:
        UsageError: there is no such module or class, or it is not a scenario.
    """
    from txcore_conformance.scenario import Scenario  # noqa: PLC0415

    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise pytest.UsageError(f"--txcore-crash {name}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Scenario)):
        raise pytest.UsageError(f"--txcore-crash {name}: {attribute} is not a txcore_conformance.scenario.Scenario")
    return found


def _judge(verdict: Verdict) -> None:
    if verdict.wrong:
        pytest.fail(str(verdict), pytrace=False)
