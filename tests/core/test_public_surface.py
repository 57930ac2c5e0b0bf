"""The names of `import txcore`: complete, sorted, documented, and importable without any extra."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest

import txcore
from txcore import errors, hookspecs
from txcore.message_table import Mode, ModeName
from txcore.producer import asynchronous as aio
from txcore.runtime import instrumentation

ROOT = Path(__file__).parents[2]
WITHOUT_SQLALCHEMY = """
import sys
sys.modules["sqlalchemy"] = None  # as if it were not installed
import txcore
producer = txcore.TransactionProducer(txcore.connect("memory://"), "orders")
transaction = producer.begin()
transaction.publish(txcore.Message("t", b"x"))
transaction.prepare()
assert transaction.commit().state is txcore.EndState.ACCEPTED
for name in ("SqlFence", "AsyncSqlFence", "Inbox", "AsyncInbox", "Relay"):
    try:
        getattr(txcore, name)
    except txcore.BackendNotInstalledError as error:
        print(error)
"""


def test_all_is_sorted_and_every_name_is_there():
    """`__all__` is sorted, and each of its names exists, also those that are imported on first access."""
    assert sorted(txcore.__all__) == list(txcore.__all__)
    assert [] == [name for name in txcore.__all__ if not hasattr(txcore, name)]
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", txcore.__version__)


@pytest.mark.parametrize(
    ("program", "unused"),
    [
        ("import txcore", ("txcore.checker", "txcore.operator", "txcore.outbox", "txcore.sqlfence", "sqlalchemy")),
        (
            "import txcore.sqlfence",
            ("txcore.checker", "sqlalchemy.orm", "sqlalchemy.ext.asyncio", "sqlalchemy.dialects."),
        ),
    ],
)
def test_an_import_loads_nothing_that_a_producer_does_not_use(program, unused):
    """A service that starts pays for its own parts only."""
    code = f"{program}, sys; print([each for each in sys.modules if each.startswith({unused!r})])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


def test_all_is_complete():
    """`__all__` contains each public name that the module imports, and each error."""
    imported = {
        name
        for name, value in vars(txcore).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and name not in {"annotations", "Any", "TYPE_CHECKING", "Final"}
    }
    assert set() == imported - set(txcore.__all__)
    assert {
        name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)
    } <= set(txcore.__all__)


def test_every_mode_can_be_given_by_its_name():
    """The names that mypy accepts as a producer's mode are the modes."""
    assert tuple(Mode) == get_args(ModeName)


def test_an_unknown_name_is_an_attribute_error():
    """An unknown name raises AttributeError, as for any module."""
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = txcore.Nonsense


@pytest.mark.parametrize("name", [name for name in txcore.__all__ if name != "__version__"])
def test_everything_public_has_a_docstring(name):
    """Each public class, function and method has a docstring."""
    value = getattr(txcore, name)
    assert inspect.getdoc(value)
    if inspect.isclass(value):
        methods = [
            each for each in vars(value).values() if inspect.isfunction(each) and not each.__name__.startswith("_")
        ]
        assert [] == [each.__name__ for each in methods if not inspect.getdoc(each)]


def test_the_api_page_is_that_of_the_code():
    """`docs/api.md` lists the API as it is: `make api` writes it, and its diff shows what a change means for users."""
    page = runpy.run_path(str(ROOT / "docs" / "site" / "api.py"))["page"]()
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == page


def test_only_existing_names_are_left_out_of_the_api_page():
    """Each class and member that the page leaves out is there, so that the list holds no former name."""
    made = runpy.run_path(str(ROOT / "docs" / "site" / "api.py"))
    listed = {
        name: getattr(module, name) for module in map(importlib.import_module, made["MODULES"]) for name in dir(module)
    }
    listed |= {name: importlib.import_module(name) for name in made["MODULES"]}
    assert [] == [name for name in [*made["RECEIVED"], *made["HIDDEN"]] if name not in listed]
    assert [] == [
        (name, each) for name in made["HIDDEN"] for each in made["HIDDEN"][name] if not hasattr(listed[name], each)
    ]


def test_every_package_has_its_types():
    """A type checker of users reads the annotations of each package in the wheel, because `py.typed` is there."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert [] == [name for name in packages["packages"] if not (ROOT / name / "py.typed").is_file()]


def test_error_tree_is_drawn_completely():
    """The picture in the module's docstring names every error under its parent."""
    drawn = re.findall(r"^([│ ]*)(?:[├└]── )?(\w+Error)\b", errors.__doc__, re.MULTILINE)
    parents: list[str] = []
    for indent, name in drawn:
        depth = 0 if name == "TxcoreError" else len(indent) // 4 + 1
        parents[depth:] = [name]
        assert issubclass(getattr(errors, name), getattr(errors, parents[max(depth - 1, 0)]))
    made = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert made == {name for _, name in drawn}


def test_the_hooks_are_documented_with_their_arguments():
    """`docs/writing-a-backend.md` names every hook as it is declared."""
    text = (ROOT / "docs" / "writing-a-backend.md").read_text(encoding="utf-8")
    hooks = [value for name, value in vars(hookspecs).items() if name.startswith("txcore_")]
    assert 4 == len(hooks)
    for hook in hooks:
        assert f"`{hook.__name__}({', '.join(inspect.signature(hook).parameters)})`" in text
        assert inspect.getdoc(hook)


def test_the_events_are_documented():
    """The author of a plugin finds every name in the docs."""
    text = (ROOT / "docs" / "writing-a-backend.md").read_text(encoding="utf-8")
    names = {value for name, value in vars(instrumentation).items() if name.isupper() and isinstance(value, str)}
    assert names >= instrumentation.ALERTS
    assert [] == sorted(name for name in names if f"`{name}`" not in text)


def test_the_core_needs_no_extra():
    """Without SQLAlchemy everything works but the names that need it, and they name the extra."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SQLALCHEMY], capture_output=True, text=True, timeout=60, check=False
    )
    assert "" == done.stderr
    remedy = 'needs SQLAlchemy; install it with: pip install "txcore[sql]"'
    needing = ("SqlFence", "SqlFence", "Inbox", "Inbox", "Relay")
    assert [f"'{name}' {remedy}" for name in needing] == done.stdout.splitlines()


def test_the_asynchronous_facade_holds_no_protocol():
    """The facade is short, reads no phase or status, and imports no record but the kind of an end."""
    source = Path(aio.__file__).read_text(encoding="utf-8")
    assert len(source.splitlines()) < 200
    tree = ast.parse(source)
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "txcore.records"
        for alias in node.names
    }
    assert {"OpKind"} == imported
    longest = max(len(node.body) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    assert longest <= 9
    compared = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in {"phase", "status"}]
    assert [] == compared
