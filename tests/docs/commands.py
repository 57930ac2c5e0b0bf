"""Commands in the documents, compared with the programs that they are meant for, without running them."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import typer

from txcore.cli import build_app

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Programs of other projects: only the shell's grammar of their commands is checked.
FOREIGN = {
    "psql",
    *(
        "$EDITOR",
        "cd",
        "cp",
        "echo",
        "export",
        "mv",
        "sed",
        "touch",
        "nats",
        "nats-server",
        "npm",
        "opentelemetry-instrument",
        "openssl",
        "redis-cli",
        "redis-server",
        "ssh",
        "zip",
    ),
    *("acl", "flask", "kafka-acls.sh", "rabbitmqctl", "uvicorn"),
}
#: Packages that a document may name for installation besides txcore.
PACKAGES = {
    *("aiosqlite", "aio-pika", "aiokafka", "celery", "dbos", "flask", "httpx", "litestar", "pika", "sqlmodel"),
    *("taskiq-aio-pika", "temporalio"),
    "examples/backend-redis",
    "nats-py[nkeys]",
    "pyspark==4.2.0",
    "pytest",
    "uv",
    "uvicorn",
}


class WrongCommandError(Exception):
    """A document names a command, an option or a target that does not exist."""


def check_script(text: str) -> None:
    """Check each command of a block."""
    shell = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    if shell.returncode:
        raise WrongCommandError(shell.stderr)
    for line in text.replace("\\\n", " ").splitlines():
        for words in simple_commands(line):
            check_command(words)


def simple_commands(line: str) -> list[list[str]]:
    """Cut a line into commands, without comments, operators, redirections and assignments."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    is_file = False
    for word in lexer:
        if set(word) <= set("();<>|&"):
            is_file = bool(set(word) & set("<>"))
            if not is_file:
                commands.append([])
        elif is_file:
            is_file = False
        elif word not in {"{", "}"} and (commands[-1] or not re.match(r"\w+=", word)):
            commands[-1].append(word)
    return [words for words in commands if words]


def check_command(words: list[str], *, is_whole: bool = True) -> None:
    """Check one command; a part of one, as in a sentence, may lack required arguments."""
    program, *arguments = words
    checks = {
        "txcore": lambda: check_txcore(arguments, is_whole=is_whole),
        "make": lambda: check_make(arguments),
        "pip": lambda: check_pip(arguments),
        "python": lambda: check_python(arguments),
        "pytest": lambda: check_pytest(arguments),
        "curl": lambda: check_curl(arguments),
        "spark-submit": lambda: check_spark(arguments),
    }
    program = {".venv/bin/python": "python"}.get(program, program)
    if program in checks:
        checks[program]()
    elif program not in FOREIGN:
        raise WrongCommandError(f"what is {program!r}? {words}")


@cache
def app():
    """Return the real command line, whose commands do nothing."""
    root = typer.main.get_command(build_app())
    waiting = [root]
    while waiting:
        command = waiting.pop()
        command.callback = lambda *_, **__: None
        waiting += getattr(command, "commands", {}).values()
    return root


def check_txcore(arguments: list[str], *, is_whole: bool = True) -> None:
    """Parse the arguments as the program does."""
    try:
        app().main(arguments, prog_name="txcore", standalone_mode=False)
    except Exception as error:
        if type(error).__name__ in {"MissingParameter", "NoArgsIsHelpError"} and not is_whole:
            return
        raise WrongCommandError(f"txcore {shlex.join(arguments)}: {error}") from error


def check_make(arguments: list[str]) -> None:
    """Check that targets exist and variables are used."""
    for each in arguments:
        name, is_variable, _ = each.partition("=")
        pattern = rf"\$\({name}\)" if is_variable else rf"^{re.escape(name)}:"
        if not re.search(pattern, MAKEFILE, re.MULTILINE):
            raise WrongCommandError(f"the Makefile has no {each!r}")


def check_pip(arguments: list[str]) -> None:
    """Check that extras exist, and that only known packages are installed."""
    extras, names = set(PROJECT["optional-dependencies"]), {each for each in arguments[1:] if each[0] != "-"}
    for name in names - PACKAGES:
        match = re.fullmatch(r"(?:txcore|\.)(?:\[([\w,]+)\])?", name)
        if not match or not set((match[1] or "sql").split(",")) <= extras:
            raise WrongCommandError(f"pip install {name}")


@cache
def help_of(*command: str) -> str:
    """Return a program's help text."""
    done = subprocess.run([sys.executable, *command, "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout


def check_options(arguments: list[str], text: str) -> None:
    """Check that each option is in the help text."""
    for each in arguments:
        option = each.partition("=")[0]
        if re.match(r"--?[a-z]", option) and not re.search(rf"(?<![\w-]){option}(?![\w-])", text):
            raise WrongCommandError(f"no such option: {option}")


def check_python(arguments: list[str]) -> None:
    """Check that modules and files exist, and have the options."""
    if arguments[0] == "-m":
        if importlib.util.find_spec(arguments[1]) is None:
            raise WrongCommandError(f"no module {arguments[1]}")
        own = arguments[2 : arguments.index("--")] if "--" in arguments else arguments[2:]
        if arguments[1] != "pip":
            leading = itertools.takewhile(str.isidentifier, own)  # subcommands
            check_options(own, help_of("-m", arguments[1], *leading))
        if "--" in arguments:
            check_command(arguments[arguments.index("--") + 1 :])
    elif arguments[0] != "-c":
        if not (ROOT / arguments[0]).is_file():
            raise WrongCommandError(f"no file {arguments[0]}")
        if arguments[1:]:
            check_options(arguments[1:], help_of(arguments[0]))


def check_pytest(arguments: list[str]) -> None:
    """Check the options with txcore's plugins; harnesses of txcore and packages of tests must be importable."""
    check_options(arguments, help_of("-m", "pytest"))
    for before, each in zip(["", *arguments], arguments, strict=False):
        if before == "--pyargs" and importlib.util.find_spec(each) is None:
            raise WrongCommandError(f"no package {each}")
        module, _, name = each.partition(":")
        if module.startswith("txcore_") and name and importlib.util.find_spec(module.partition(".")[0]):
            getattr(importlib.import_module(module), name)


def check_curl(arguments: list[str]) -> None:
    """Check that a URL on the checker's port is a path of its API."""
    described = json.loads((ROOT / "docs" / "api-openapi.json").read_text(encoding="utf-8"))["paths"]
    for each in arguments:
        path = re.match(r"https?://[^/]*:8181(/[^?]*)", each)
        if path and not any(re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", known), path[1]) for known in described):
            raise WrongCommandError(f"the API has no {path[1]}")


def check_spark(arguments: list[str]) -> None:
    """Check that the arguments after the program are those of `txcore audit`."""
    place = next(number for number, each in enumerate(arguments) if each.endswith("audit.py"))
    check_txcore(["audit", *arguments[place + 1 :]])
