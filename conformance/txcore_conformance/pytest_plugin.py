"""The pytest plugin: `--harness module:Class` runs the suite in `txcore_conformance.suite` against a backend.

    pytest -p txcore_conformance.pytest_plugin --pyargs txcore_conformance.suite \
        --harness txcore_conformance.memory:MemoryHarness

`--harness` may be repeated. Tests name required promises with `@pytest.mark.requires("atomic_release")`; they are
skipped, with that reason, if the backend does not promise them. A test that a backend does not pass *yet* is in its
harness's `gaps` and is a strict xfail. Without the option the plugin only keeps pytest from collecting the suite.
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Final, cast

import pytest

from txcore.records import Capabilities
from txcore_conformance.broker_warnings import BrokerFallbackWarning, warnings
from txcore_conformance.harness import Harness

SUITE: Final = Path(__file__).parent / "suite"
LONG_MODULES: Final = ("test_crash", "test_live_")
"""Modules of the suite that kill processes and brokers, and therefore take minutes."""
STEPS: Final = ("test_port_control", "test_port", "test_port_ends", "test_port_strange", "test_commit")
"""Modules that run first, in the order in which an author makes a backend; the long ones run last."""
FIXTURES: Final = "txcore_conformance.fixtures"
MARKERS: Final = (
    "requires(*promises): skip if the backend's capabilities lack one of them; `no:name` requires its absence",
    "needs_process: skip if no other process can reach the backend",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--harness`."""
    group = parser.getgroup("txcore", "txcore conformance")
    group.addoption(
        "--harness",
        action="append",
        default=[],
        metavar="MODULE:CLASS",
        help="run the conformance suite against this backend's harness; may be repeated",
    )
    group.addoption(
        "--harness-form",
        action="append",
        default=[],
        metavar="MODULE:CLASS",
        help="the same without the tests that take minutes: for another form of a backend that --harness names already",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register markers, and the fixtures when a harness is given."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    # Shown, never an error: the run continues with another version of the broker.
    config.addinivalue_line("filterwarnings", f"default::{BrokerFallbackWarning.__module__}.BrokerFallbackWarning")
    if _harnesses(config):
        for name in _harnesses(config):
            load_harness(name)
        config.pluginmanager.register(importlib.import_module(FIXTURES), FIXTURES)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the suite in runs without a harness."""
    if collection_path.is_relative_to(SUITE) and not _harnesses(config, collection_path):
        return True
    return None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Name the harnesses, and the brokers that run in another version."""
    brokers = [f"txcore broker: {text}" for text in warnings()]
    return [*brokers, *(f"txcore harness: {name}" for name in _harnesses(config))]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the brokers that did not run in the requested version."""
    texts = warnings()
    if texts:
        terminalreporter.section("txcore brokers")
        for text in texts:
            terminalreporter.line(f"WARNING {text}", yellow=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Turn each harness's gaps into strict xfails, and bring the suite into its order.

    Raises:
        UsageError: a gap names a test that does not exist, or the suite is to run without a harness.
    """
    names = _harnesses(config)
    if not names:
        if any(item.path.is_relative_to(SUITE) for item in items):
            raise pytest.UsageError("the conformance suite needs --harness MODULE:CLASS")
        return
    items.sort(key=_place)
    known = suite_tests() | {_plain_name(item) for item in items}
    for name in names:
        gaps = load_harness(name).gaps
        unknown = sorted(set(gaps) - known)
        if unknown:
            raise pytest.UsageError(f"{name}.gaps names tests that do not exist: {', '.join(unknown)}")
    for item in items:
        name = _harness_of(item)
        gap = load_harness(name).gaps.get(_plain_name(item)) if name else None
        if gap is not None:
            item.add_marker(pytest.mark.xfail(reason=f"{gap.kind}: {gap.reason}", raises=gap.raises, strict=True))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that uses the suite's `harness` once for each given harness."""
    names = _harnesses(metafunc.config, metafunc.definition.path)
    if names and "harness_name" in metafunc.fixturenames:
        metafunc.parametrize("harness_name", names, ids=_short_name, indirect=True, scope="session")


@functools.cache
def load_harness(name: str) -> type[Harness]:
    """Return the harness class that `module:Class` names.

    Raises:
        UsageError: there is no such module or class, or it is not a harness.
    """
    module, colon, attribute = name.partition(":")
    if not module or not colon or not attribute:
        raise pytest.UsageError(f"--harness takes MODULE:CLASS, not {name!r}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"--harness {name}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Harness)):
        raise pytest.UsageError(f"--harness {name}: {attribute} is not a txcore_conformance.harness.Harness")
    return found


@functools.cache
def suite_tests() -> frozenset[str]:
    """Return the names of all tests of the suite, including those that are not run."""
    return frozenset(
        node.name
        for path in SUITE.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def missing_promise(capabilities: Capabilities, promises: Iterator[str] | tuple[str, ...]) -> str | None:
    """Return the reason why a test that requires *promises* cannot run, or None.

    Raises:
        UsageError: there is no such capability.
    """
    known = {field.name for field in fields(Capabilities)}
    for promise in promises:
        name = promise.removeprefix("no:")
        if name not in known:
            raise pytest.UsageError(f"requires({promise!r}): there is no such capability")
        has = bool(getattr(capabilities, name))
        if has is promise.startswith("no:"):
            note = capabilities.notes.get(name, "")
            return f"the backend {'has' if has else 'does not promise'} {name}" + (f": {note}" if note else "")
    return None


def _harnesses(config: pytest.Config, module: Path | None = None) -> list[str]:
    """Return the harnesses for the tests of *module*, or all."""
    names: list[str] = config.getoption("harness")
    is_long = module is not None and module.is_relative_to(SUITE) and module.stem.startswith(LONG_MODULES)
    return names if is_long else [*names, *config.getoption("harness_form")]


def _place(item: pytest.Item) -> int:
    """Return the place of an item's module in the suite; all other tests keep their own, before it."""
    if not item.path.is_relative_to(SUITE):
        return -1
    name = item.path.stem
    return STEPS.index(name) if name in STEPS else len(STEPS) + name.startswith(LONG_MODULES)


def _plain_name(item: pytest.Item) -> str:
    return cast("str", getattr(item, "originalname", None) or item.name)


def _harness_of(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("harness_name", "")) if callspec is not None else ""


def _short_name(name: str) -> str:
    return name.rpartition(":")[2]
