"""House rules that no linter checks: sizes, calls for time and randomness, and text that must not be in the tree."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINES_MAX = 400
FUNCTION_LINES_MAX = 70
PACKAGES = (
    "txcore",
    "conformance/txcore_conformance",
    "spark/txcore_spark",
    *(str(p.relative_to(ROOT)) for p in ROOT.glob("plugins/*/txcore_*")),
)
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
CODE = sorted({*SOURCES, *ROOT.glob("tests/**/*.py"), *ROOT.glob("plugins/**/*.py"), *ROOT.glob("benchmarks/**/*.py")})
#: Files longer than LINES_MAX, each with its reason.
LONG_FILES: dict[str, str] = {}
#: Where the machine's time or chance may be asked for, each with its reason.
IMPURE = {
    "txcore/clock.py": "the one place",
    "txcore/runtime/drivers.py": "sleeps for a blocking caller",
    "txcore/operator/operator.py": "sleeps for a blocking caller",
    "txcore/integrations/opentelemetry.py": "spans bear the machine's time, to the nanosecond",
    "txcore/sqlfence/schema.py": "draws the name of a database, once in its life",
    "txcore/history/log_survey.py": "sleeps for a blocking caller",
}
#: Packages whose objects the calling threads of a producer share.
SHARED = ("txcore/producer/", "txcore/runtime/", "txcore/backends/", "plugins/")
#: Attributes whose lock an interrupted caller would keep.
UNSAFE = re.compile(
    r"(self\.\w+(: [^=]+)? = |default_factory=)(threading\.(Event|Condition|\w*Semaphore|Barrier)|queue\.\w*Queue)\b"
)
#: Modules with such an attribute, each with its reason.
UNSAFE_USERS = {
    "plugins/kafka/txcore_kafka/threads.py": "a SimpleQueue, whose methods are one call in C each",
    "plugins/sqlite/txcore_sqlite/writer.py": "callers use the queue's own bare lock",
    "txcore/runtime/call_pool.py": "a SimpleQueue, whose methods are one call in C each",
}
IMPURE_CALLS = re.compile(
    r"\b(time\.(time|time_ns|monotonic|perf_counter|sleep)|random\.\w+|uuid\.uuid\d|secrets\.\w+|datetime\.now)\("
)


def name_of(path):
    """Return a path as it is named in the lists above."""
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path):
    """Return a file's syntax tree; each file is parsed once."""
    return ast.parse(path.read_text(encoding="utf-8"))


def test_plugin_folders_are_no_packages():
    """An `__init__.py` in plugins/nats/ would hide the real `nats` package."""
    folders = [
        ROOT / "plugins",
        *(path for path in (ROOT / "plugins").iterdir() if path.is_dir()),
        ROOT / "conformance",
        ROOT / "spark",
    ]
    assert [] == [name_of(folder) for folder in folders if (folder / "__init__.py").exists()]


def test_every_plugin_is_under_the_import_contracts():
    """Each plugin is in the contracts of pyproject.toml."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    siblings = next(each["modules"] for each in contracts if each["type"] == "independence")
    found = [*ROOT.glob("plugins/*/txcore_*"), *ROOT.glob("examples/backend-*/txcore_*")]
    assert sorted(path.name for path in found) == sorted(siblings)


def test_modules_are_short():
    """Modules have under 400 lines, except those that are listed with a reason as long as they are longer."""
    long = {name_of(path) for path in SOURCES if len(path.read_text(encoding="utf-8").splitlines()) >= LINES_MAX}
    assert set() == long - set(LONG_FILES)
    assert set() == set(LONG_FILES) - long, "no longer too long: delete from LONG_FILES"


def test_functions_are_short():
    """Functions have under 70 lines."""
    long = [
        f"{name_of(path)}:{node.name}"
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert [] == long


def test_modules_say_what_they_are_for():
    """Each module begins with a docstring."""
    silent = [name_of(path) for path in SOURCES if not ast.get_docstring(parsed(path))]
    assert [] == silent


def test_core_asks_only_its_clock_for_time_and_chance():
    """Except for listed modules, the core is given a clock and randomness, so that one seed replays one history."""
    found = [
        f"{name_of(path)}: {match.group(0)}"
        for path in sorted((ROOT / "txcore").rglob("*.py"))
        if name_of(path) not in IMPURE and "/cli/" not in name_of(path)
        for match in IMPURE_CALLS.finditer(path.read_text(encoding="utf-8"))
    ]
    assert [] == found


def test_no_interrupted_caller_keeps_a_lock_that_others_need():
    """Objects that callers share use `txcore.wake.Wake` or a bare lock: Event, Condition and Queue are not safe."""
    users = {
        name_of(path)
        for path in SOURCES
        if name_of(path).startswith(SHARED) and UNSAFE.search(path.read_text(encoding="utf-8"))
    }
    assert set(UNSAFE_USERS) == users


@pytest.mark.parametrize("word", ["FIX" + "ME", "TO" + "DO", "XX" + "X", "breakpoint" + "("])
def test_nothing_unfinished_lies_around(word):
    """No file contains a mark of unfinished work, which belongs in an issue."""
    pattern = re.compile(rf"(?<![\w/]){re.escape(word)}")
    assert [] == [name_of(path) for path in CODE if pattern.search(path.read_text(encoding="utf-8"))]


def test_documents_name_no_machine():
    """No document or source file names a path of a machine or a host of a package registry."""
    pattern = re.compile(r"/work/|/home/\w|/root/|" + "pypi" + r"\.org|files\.python" + r"hosted", re.IGNORECASE)
    documents = [path for path in ROOT.glob("docs/**/*") if path.suffix != ".png"]
    texts = [*ROOT.glob("*.md"), *documents, ROOT / "Makefile", ROOT / ".ci" / "run", *CODE]
    found = [path for path in texts if path.is_file() and pattern.search(path.read_text(encoding="utf-8"))]
    assert [] == [name_of(path) for path in found if path != Path(__file__)]
