"""`txcore backends`: the brokers that this installation can use."""

from __future__ import annotations

import json
from pathlib import Path

import txcore as library
from txcore.cli import guarantees
from txcore.registry import known_schemes


def test_table_names_every_installed_backend_and_fits(txcore):
    """The table has a line for each backend, within 80 columns."""
    ran = txcore("backends")
    assert (ran.status, ran.errors) == (0, "")
    assert ran.width <= 80
    assert [scheme for scheme in known_schemes() if f"\n{scheme} " not in ran.output] == []


def test_json_holds_all_capabilities_of_backends_without_a_server(txcore):
    """The JSON has the same capabilities as an opened backend."""
    ran = txcore("backends", "--json")
    found = {line["scheme"]: line for line in json.loads(ran.output)}
    assert sorted(found) == list(known_schemes())
    backend = library.connect("memory://test-json")
    assert found["memory"]["capabilities"]["body_size_max"] == backend.capabilities.body_size_max
    backend.close().result(5)
    sqlite = found["sqlite"]
    assert (sqlite["distribution"], sqlite["version"]) == ("txcore", library.__version__)
    assert (sqlite["is_ready"], sqlite["missing"]) == (True, "")
    assert sqlite["capabilities"]["atomic_release"] is True


def test_missing_driver_is_named_with_its_extra(txcore):
    """A broken plugin affects only its own line."""
    spoil = """
import dataclasses, txcore_sqlite
driver = {"driver": "the sqlite3 module", "driver_module": "no_such_module", "extra": "sqlite"}
txcore_sqlite.PLUGIN = dataclasses.replace(txcore_sqlite.PLUGIN, **driver)
"""
    ran = txcore("backends", before=spoil)
    assert "sqlite: 'sqlite' needs the sqlite3 module; install it with: pip install \"txcore[sqlite]\"" in ran.output
    assert ran.status == 0
    line = next(line for line in json.loads(txcore("backends", "--json", before=spoil).output) if line["missing"])
    assert (line["scheme"], line["is_ready"], line["capabilities"]) == ("sqlite", False, {})


def test_a_backend_without_guarantees_is_named(txcore):
    """A question mark in the table has its reason below it."""
    spoil = "import dataclasses, txcore_sqlite as s; s.PLUGIN = dataclasses.replace(s.PLUGIN, guarantees=())"
    ran = txcore("backends", before=spoil)
    assert ran.status == 0
    assert "\nsqlite: its plugin names no guarantees\n" in ran.output


def test_every_backend_of_this_tree_declares_its_guarantees(tmp_path, monkeypatch):
    """Each form of URL, opened without a server, gives exactly the capabilities that the backend declares."""
    monkeypatch.chdir(tmp_path)
    for scheme in known_schemes():
        forms = guarantees.guarantees_of(scheme)
        assert forms, scheme
        for form in forms:
            assert form.url.startswith(f"{scheme}:")
            backend = library.connect(form.url.replace("host:", "127.0.0.1:"))
            assert backend.capabilities == form.capabilities, form.url
            backend.close(5).result(10)


def test_page_of_guarantees_is_the_one_that_the_code_makes(txcore):
    """`docs/guarantees.md` is the command's output: `make guarantees` writes it."""
    page = Path(__file__).parents[2] / "docs" / "guarantees.md"
    assert page.read_text(encoding="utf-8") == txcore("backends", "--markdown").output
