"""Every code block of the documents is run, or parsed by the program that it is meant for."""

from __future__ import annotations

import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
import scenes
import yaml
from blocks import ROOT, blocks_of, documents, is_part, spans_of
from commands import WrongCommandError, check_command, check_pip, check_script, simple_commands
from service import order_from
from txcore_conformance import brokers

from txcore.config import Config, load

PLUGINS = ("no:cacheprovider", "txcore_conformance.pytest_plugin", "txcore_conformance.crash_plugin")

CODE = {"python", "sh", "console", "toml", "json", "yaml", "sql", "dockerfile", "conf"}
WITH_BLOCKS = [document for document in documents() if blocks_of(document)]
RUN = {"python", "sql"}


def of(*languages):
    """Return the blocks of these languages without a comment, as parameters."""
    found = [block for document in WITH_BLOCKS for block in blocks_of(document)]
    return [pytest.param(each, id=str(each)) for each in found if each.language in languages and not each.order]


@pytest.mark.parametrize("document", WITH_BLOCKS)
def test_every_block_is_treated(document):
    """Each block has a known language or a comment before it, and a comment names a reason or an existing test."""
    untreated = []
    for block in blocks_of(document):
        if block.order == "not run":
            assert len(block.detail) > 10, f"{block}: say why"
        elif block.order == "shown by":
            assert (ROOT / block.detail).is_file(), f"{block}: no {block.detail}"
        elif block.order == "part of":
            program = (ROOT / block.detail).read_text(encoding="utf-8")
            assert is_part(block.text, program), f"{block}: {block.detail} has other lines now"
        elif block.language not in CODE and not block.language.startswith("{"):
            untreated.append(str(block))
    assert [] == untreated


def test_a_block_is_part_of_a_program_only_with_all_its_lines_in_order():
    """Depth does not matter; a missing, changed or moved line does."""
    program = "def f():\n    a = 1\n    b = 2\n    return a + b\n"
    assert is_part("a = 1\nb = 2\n", program)
    assert not any(is_part(text, program) for text in ("a = 1\nreturn a + b", "b = 2\na = 1", "a = 3"))


def programs():
    """Return the documents that have a block to run."""
    return [name for name in WITH_BLOCKS if any(is_run(block) for block in blocks_of(name))]


def is_run(block):
    if block.order == "run":
        return not block.detail.startswith("with ")
    return block.language in RUN and not block.order


def needing_servers():
    """Return the documents with programs that need a running server; long ones are also marked heavy."""
    for document in WITH_BLOCKS:
        needs = [block.detail for block in blocks_of(document) if block.detail.startswith("with ")]
        if needs:
            yield pytest.param(document, id=document)
        if "with heavy" in needs:
            yield pytest.param(document, id=f"{document}-heavy", marks=pytest.mark.heavy)


def run_program(block, document, namespace):
    """Run a program as a user would: without the `annotations` of this module's own `__future__`."""
    exec(compile("\n" * (block.line - 1) + block.text, ROOT / document, "exec", dont_inherit=True), namespace)


@pytest.mark.parametrize("document", [*needing_servers()])
def test_the_programs_that_need_servers_run_in_order(document, request, tmp_path, monkeypatch):
    """The programs run on brokers that are started for them; blocks that take minutes run only under `make heavy`."""
    monkeypatch.chdir(tmp_path)
    is_heavy = request.node.get_closest_marker("heavy") is not None
    with scenes.scene(document) as namespace:
        for block in blocks_of(document):
            _, _, names = block.detail.partition("with ")
            if not names or (names == "heavy" and not is_heavy):
                continue
            try:
                run_program(block, document, namespace)
            except brokers.ServerUnavailableError as error:
                if any(map(brokers.is_required, names.split(","))):
                    raise
                pytest.skip(str(error))


@pytest.mark.parametrize("document", programs())
def test_the_programs_run_in_order(document, tmp_path, monkeypatch, capsys, outside):
    """The blocks of a page, run one after the other in the page's scene, raise no error."""
    monkeypatch.chdir(tmp_path)
    printed = ""
    with scenes.scene(document) as namespace:
        for block in blocks_of(document):
            if not is_run(block):
                continue
            if block.language == "sh":
                printed += run_script(block)
            elif block.detail == "pytest":
                run_tests(block, outside, "test_page.py")
            elif block.detail == "service":
                order_from(block)
            elif block.detail == "conformance":
                arguments = (
                    "--pyargs",
                    "txcore_conformance.suite",
                    "--harness",
                    "my_harness:MyHarness",
                    "-k",
                    "commit",
                )
                run_tests(block, outside, "my_harness.py", *arguments)
            elif block.language == "sql":
                with closing(sqlite3.connect("page.db")) as connection:
                    connection.executescript(block.text)
            else:
                run_program(block, document, namespace)
    printed += capsys.readouterr().out
    for expected in scenes.PRINTED.get(document, ()):
        assert expected in printed


def run(block, command, environment):
    """Return the output of a successful command."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert 0 == done.returncode, f"{block}: {done.stdout}{done.stderr}"
    return done.stdout


def run_script(block):
    """Run commands as a user with an installed txcore does."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return run(block, ["bash", "-euo", "pipefail", "-c", block.text], {**os.environ, "PATH": path})


def run_tests(block, environment, name, *arguments):
    """Write a file and run pytest on it or with it."""
    Path(name).write_text(block.text, encoding="utf-8")
    Path("pytest.ini").write_text("[pytest]\npythonpath = .\n", encoding="utf-8")
    plugins = [each for name in PLUGINS for each in ("-p", name)]
    run(block, [sys.executable, "-m", "pytest", "-q", *plugins, *(arguments or [name])], environment)


@pytest.mark.parametrize("block", of("sh"))
def test_commands_are_those_of_the_programs(block):
    """Subcommands, options, targets, extras, modules and files in shell blocks exist."""
    check_script(block.text)


@pytest.mark.parametrize("block", of("console"))
def test_shown_commands_are_those_of_the_programs(block):
    """The commands after the prompts in console blocks exist."""
    commands = re.findall(r"^\$ ((?:.*\\\n)*.*)$", block.text, re.MULTILINE)
    assert commands
    for command in commands:
        check_script(command)


@pytest.mark.parametrize("document", documents())
def test_commands_in_sentences_are_those_of_the_programs(document):
    """`txcore …`, `make …` and `python -m …` in backticks exist, up to the first "…"."""
    wrong = []
    for span in spans_of(document):
        words = (
            shlex.split(span.split(" | ")[0].split("…")[0]) if re.match(r"(txcore|make|python -m|pip) \w", span) else []
        )
        try:
            if words and (document, span) not in scenes.NO_COMMANDS:
                check_command(words, is_whole=False)
        except WrongCommandError as error:
            wrong.append(f"{span}: {error}")
    assert [] == wrong


@pytest.mark.parametrize("block", of("toml", "json", "yaml"))
def test_configurations_are_taken(block, tmp_path):
    """The checker's own reader accepts each configuration; other TOML is pyproject.toml's, other data is valid."""
    if block.language == "json":
        assert json.loads(block.text)
    elif block.language == "yaml":
        assert list(yaml.safe_load_all(block.text))
    elif set(tomllib.loads(block.text)) <= set(Config.__struct_fields__):
        file = tmp_path / "txcore.toml"
        file.write_text(scenes.completed(block.text, tmp_path), encoding="utf-8")
        load(file, environment=scenes.ENVIRONMENT, needs_groups=False)
    else:
        assert {"project"} == set(tomllib.loads(block.text))


@pytest.mark.parametrize("block", of("dockerfile"))
def test_images_install_existing_packages(block):
    """Each `pip install` of a Dockerfile names existing extras and known packages."""
    steps = re.findall(r"^RUN (.*)$", block.text.replace("\\\n", " "), re.MULTILINE)
    commands = [words for step in steps for words in simple_commands(step)]
    installed = [words[words.index("install") :] for words in commands if {"pip", "install"} <= set(words)]
    assert installed
    for words in installed:
        check_pip([word for word in words if word[0] != "/"])


def test_mistake_in_a_configuration_is_printed_as_on_the_page(tmp_path, monkeypatch):
    """The command prints the mistake with file, line, key and correction, as the page does."""
    monkeypatch.chdir(tmp_path)
    (shown,) = [block.text for block in blocks_of("docs/checker.md") if block.text.startswith("txcore: ")]
    lines = ["[backends.b]", 'url = "sqlite:///b.db"', "[databases.d]", 'url = "sqlite:///d.db"', "[groups.orders]"]
    lines += ['database = "d"', "#", "#", "#", "#", "[groups.orders.policy]", "interval_ms = 1500"]
    Path("txcore.toml").write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "txcore.cli", "config", "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown == done.stderr
