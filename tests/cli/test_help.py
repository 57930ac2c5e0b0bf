"""The help of every command: its text is whole, fits 80 columns, and ends with examples that the command takes."""

from __future__ import annotations

import json
import re
import shlex

import pytest
import typer

from txcore.cli import build_app
from txcore.cli.examples import EXAMPLES


def commands(command, before=()):
    """Yield the path of every command and group."""
    yield before
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*before, name))


ROOT = typer.main.get_command(build_app())
PATHS = [*commands(ROOT)]
GROUPS = {path[:-1] for path in PATHS if path} - {("audit",)}  # which is a command, too


@pytest.fixture
def help_of(capsys, monkeypatch):
    """Return a function that returns the help of a command on 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def printed(path):
        ROOT.main([*path, "--help"], prog_name="txcore", standalone_mode=False)
        return capsys.readouterr().out

    return printed


def test_a_second_app_has_each_command_once():
    """A process that runs many commands, as tests do, does not collect the commands of a group again and again."""
    for _ in range(2):
        groups = {group.name: group.typer_instance for group in build_app().registered_groups}
        for name, group in groups.items():
            names = [command.name for command in group.registered_commands]
            assert sorted(set(names)) == sorted(names), name


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_help_is_whole_and_ends_with_an_example(path, help_of):
    """No line is longer than 80 columns, no text in brackets is lost, and neither switch nor argument shows a type."""
    text = help_of(path)
    assert 80 >= max(map(len, text.splitlines()))
    assert not re.search(r"<(bool|str|int|path|list.*)>|\s\.$|\x1b", text, re.MULTILINE), text
    assert re.search(r"\n\n  Examples?:\n    txcore ", text), text
    if "--config" in text:
        assert "txcore.toml" in text


def test_the_files_default_is_shown(help_of):
    """A default in brackets in the help text is no markup."""
    for path in (["checker"], ["audit"], ["config", "check"]):
        assert "[default: txcore.toml here; TXCORE_CONFIG]" in " ".join(help_of(path).split())


@pytest.mark.parametrize("example", [each for examples in EXAMPLES.values() for each in examples])
def test_an_example_is_taken_by_its_command(example):
    """The parser takes each example; nothing is run."""
    root = typer.main.get_command(build_app())
    waiting = [root]
    while waiting:
        command = waiting.pop()
        command.callback = lambda *_, **__: None
        waiting += getattr(command, "commands", {}).values()
    _, *arguments = shlex.split(example.replace("\\\n", " "))
    if arguments[0] != "COMMAND":
        root.main(arguments, prog_name="txcore", standalone_mode=False)


def test_every_command_has_examples_and_no_other():
    """The table of examples has each command once."""
    assert {" ".join(path) for path in PATHS} == set(EXAMPLES)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(txcore, monkeypatch, shell):
    """The shells' completion knows the commands."""
    monkeypatch.setenv("_TXCORE_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", "txcore to")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "txcore to")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    ran = txcore()
    assert {"top", "topics"} <= set(re.findall(r"\w+", ran.output))
    assert "doctor" not in ran.output


def test_results_as_json(txcore, tmp_path):
    """The demo, the check of a file and the probes of a checker print JSON and nothing else."""
    (tmp_path / "txcore.toml").write_text(
        '[backends.b]\nurl = "sqlite:///b.db"\n[databases.d]\nurl = "sqlite:///d.db"\n[groups.shop]\ndatabase = "d"\n'
    )
    assert 0 == txcore("fence", "create", "--database", "sqlite:///d.db").status
    assert 0 == txcore("topics", "create", "--broker", "sqlite:///b.db", "--group", "shop").status
    checked = txcore("config", "check", "--json")
    assert (json.loads(checked.output), checked.errors) == ({"mistakes": [], "groups": ["shop"]}, "")
    probed = json.loads(txcore("checker", "--check-config", "--json").output)
    assert [True] * len(probed) == [each["is_well"] for each in probed], probed
    (tmp_path / "wrong.toml").write_text("[groups.shop]\nbackend = 'c'\n")
    wrong = txcore("config", "check", "wrong.toml", "--json")
    assert (2, "") == (wrong.status, wrong.errors)
    assert json.loads(wrong.output)["mistakes"]


@pytest.mark.parametrize("path", [each for each in PATHS if each not in GROUPS], ids=" ".join)
def test_every_command_has_its_result_as_json(path, help_of):
    """Each command that prints a result prints it for programs, too."""
    assert "  --json " in help_of(path)


def test_what_is_printed_without_a_server_is_printed_as_json(txcore):
    """The JSON holds the same text, tables and statements as the output for people."""
    rights = ["permissions", "kafka", "--group", "shop", "--role", "producer", "--target", "orders"]
    for arguments, text_of in (
        (rights, lambda found: found["rights"]),
        (["fence", "ddl", "--dialect", "sqlite"], lambda found: ";\n\n".join(found["statements"]) + ";"),
    ):
        ran = txcore(*arguments, "--json")
        assert (0, "") == (ran.status, ran.errors)
        assert txcore(*arguments).output.strip() == text_of(json.loads(ran.output))
    keys = json.loads(txcore("config", "reference", "--json").output)
    tables = txcore("config", "reference").output
    assert len(keys) == len(re.findall(r"^\| `", tables, re.MULTILINE)) > 50
    assert all(f"| `{each['key']}` |" in tables and each["meaning"] in tables for each in keys)
    assert {"file": "new.toml"} == json.loads(txcore("config", "init", "new.toml", "--json").output)
    again = txcore("config", "init", "new.toml", "--json")
    assert (2, "", "new.toml is there already; --force replaces it") == (again.status, again.output, again.sentence)


def test_the_demo_as_json(txcore):
    """The demo's figures are those of its screen."""
    ran = txcore("demo", "--orders", "60", "--kills", "0", "--json", timeout_s=500)
    found = json.loads(ran.output)
    assert (0, "") == (ran.status, ran.errors)
    assert (True, 57, 0, 0) == (found["is_proven"], found["orders_committed"], found["lost"], found["leaked"])
