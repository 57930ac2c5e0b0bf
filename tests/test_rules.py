"""docs/rules.md: each cited rule is defined there, each home exists, and each rule has a mutant."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from txcore_conformance import model_mutants
from txcore_conformance.invariants import Invariant
from txcore_conformance.refine import mutants as refined
from txcore_conformance.sim import mutants as simulated

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "mutants"))
TEXT = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
RULES = dict(re.findall(r"^## (R\d+): .+?\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
CITED = re.compile(r"(?<![\w.%/-])([RSL])(\d{1,2})(?![\w%])")


def quoted(rule, field):
    """Return the names in a rule's *field*, such as its homes."""
    (text,) = re.findall(rf"^\*{field}:\*(.*?)(?=^\*|\Z)", RULES[rule], re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`]+)`", text)


def files():
    """Return the tracked files of code and text."""
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def defined_in(path):
    """Return the names of a module's functions, classes and methods, methods with their class."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            inner = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            names |= {node.name, *(f"{node.name}.{each.name}" for each in inner)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return names


def test_every_cited_rule_is_defined():
    """Each cited rule is defined in docs/rules.md, or as an invariant in the code that judges it."""
    known = set(RULES) | {each.name for each in Invariant}
    cited = {
        f"{path.relative_to(ROOT)}: {kind}{number}"
        for path in files()
        for kind, number in CITED.findall(path.read_text(encoding="utf-8"))
        if f"{kind}{number}" not in known
    }
    assert set() == cited


@pytest.mark.parametrize("rule", RULES)
def test_homes_of_a_rule_exist(rule):
    """Each home of a rule is a file, or a function or class in a file."""
    missing = []
    for home in quoted(rule, "Home"):
        path, _, name = home.partition(":")
        if not (ROOT / path).is_file() or (name and name not in defined_in(ROOT / path)):
            missing.append(home)
    assert [] == missing
    assert quoted(rule, "Home")


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_mutants(rule):
    """Each rule has mutants, and each of them is in a list whose mutants must die."""
    from mutant import all_mutants  # noqa: PLC0415 - beside the tests of mutants

    known = {*simulated.MUTANTS, *model_mutants.MUTANTS, *refined.MUTANTS, *(each.name for each in all_mutants())}
    assert set() == set(quoted(rule, "Mutants")) - known
    assert quoted(rule, "Mutants")
