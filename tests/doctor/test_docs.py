"""docs/doctor.md names every check and no other, and every check has a test that breaks it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from txcore.doctor import backend_checks as doctor_port
from txcore.doctor import callback_checks as doctor_callback
from txcore.doctor import database_checks as doctor_database

ROOT = Path(__file__).parents[2]
PLUGINS = ("kafka", "nats", "rabbitmq", "sqlite")


def tables():
    """Return the checks of each part."""
    found = {"port": doctor_port.CHECKS, "callback": doctor_callback.CHECKS, **doctor_database.CHECKS}
    found |= {f"plugin {name}": importlib.import_module(f"txcore_{name}.doctor").CHECKS for name in PLUGINS}
    return found


def checks():
    return [check for table in tables().values() for check in table]


def test_document_lists_the_checks_as_they_are():
    """The document has the ids and the meanings of all checks."""
    text = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+\.[a-z-]+)` \| (.+?) \|$", text, flags=re.MULTILINE)
    assert dict(rows) == {check.name: check.meaning for check in checks()}
    assert len(rows) == len(checks())


def test_every_check_is_broken_by_a_test():
    """Each id has a test marked `breaks`, and each such mark names an existing id."""
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    broken = set(re.findall(r'^@pytest\.mark\.breaks\("([a-z.-]+)"\)$', sources, flags=re.MULTILINE))
    assert broken == {check.name for check in checks()}


@pytest.mark.parametrize("part", tables())
def test_tables_are_sound(part):
    """The ids are unique, and each check needs only an earlier one."""
    names = [check.name for check in tables()[part]]
    assert len(names) == len(set(names))
    for place, check in enumerate(tables()[part]):
        assert not check.needs or check.needs in names[:place], check.name
    least = {"port": 7, "callback": 1} | dict.fromkeys(doctor_database.CHECKS, 4)
    assert len(names) >= least.get(part, 8)
