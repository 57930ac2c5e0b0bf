"""`python -m benchmarks.acceptance --broker NAME`: the promises about the checker process, line by line, in figures.

Each line is a command that also runs by itself. It is printed before its output, and all output is stored in
`.artefacts/acceptance-NAME.txt`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import machine

ROOT = Path(__file__).parents[1]
SIDECAR = ("-m", "benchmarks.sidecar")
PYTEST = ("-m", "pytest", "-q", "-s")
ON_BROKER = ("orphans", "takeovers", "outage", "garbage", "large-garbage", "idle")


def lines(broker: str, *, is_quick: bool) -> dict[str, tuple[str, ...]]:
    """Return the command of each line by its name; *is_quick* makes them small, to try the commands themselves."""
    at = ("--broker", broker)
    count, kills, seconds, garbage = ("400", "3", "5", "300") if is_quick else ("10000", "50", "600", "10000")
    lead, load, idle = ("5", "10", "5") if is_quick else ("40", "40", "60")
    examples = "10" if is_quick else "1000"
    waiting, large = ("200", "3") if is_quick else ("5000", "20")
    return {
        "orphans": (*SIDECAR, "orphans", *at, "--count", count, "--lead-s", lead),
        "takeovers": (*SIDECAR, "takeovers", *at, "--kills", kills, "--load", load),
        "outage": (*SIDECAR, "outage", *at, "--seconds", seconds, "--count", waiting),
        "walk": (*PYTEST, "tests/sidecar/console"),
        "configs": (*PYTEST, "tests/sidecar/test_config.py", "-k", "wrong_configuration"),
        "fuzz": ("-c", f"import os; os.environ['TXCORE_FUZZ_EXAMPLES'] = '{examples}'; {_PYTEST_FUZZ}"),
        "decoders": ("-m", "benchmarks.fuzz", "--seconds", "5" if is_quick else "60"),
        "garbage": (*SIDECAR, "garbage", *at, "--count", garbage),
        "large-garbage": (*SIDECAR, "garbage", *at, "--count", large, "--size", str(1_000_000)),
        "example": (*PYTEST, "tests/examples"),
        "idle": (*SIDECAR, "idle", *at, "--seconds", idle),
    }


_PYTEST_FUZZ = "import sys, pytest; sys.exit(pytest.main(['-q', '-s', 'tests/sidecar/test_fuzz.py']))"


def main(
    broker: Annotated[str, typer.Option(help="sqlite, kafka, rabbitmq, nats, or a URL.")] = "sqlite",
    only: Annotated[list[str] | None, typer.Option(help="Only these lines; default: all. Repeatable.")] = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Small figures, to try the commands.")] = False,
) -> None:
    """Run the lines one after the other; the exit code is 0 when every line succeeded."""
    machine.warn_if_loaded()
    found = lines(broker, is_quick=quick)
    unknown = set(only or ()) - found.keys()
    if unknown:
        raise typer.BadParameter(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    kept = ROOT / ".artefacts" / f"acceptance-{broker.partition('://')[0]}.txt"
    kept.parent.mkdir(exist_ok=True)
    failed = []
    with kept.open("a", encoding="utf-8") as file:
        for name, command in found.items():
            if only and name not in only:
                continue
            _say(file, f"\n== {name}: python {' '.join(command)}")
            began_s = time.monotonic()
            done = subprocess.run(
                [sys.executable, *command],
                cwd=ROOT,
                env={**os.environ, "TXCORE_REQUIRE": "chromium,node,nats"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            _say(file, done.stdout.rstrip())
            _say(file, f"ended with {done.returncode} after {time.monotonic() - began_s:.0f} s")
            if done.returncode:
                failed.append(name)
        _say(file, f"\n{len(failed)} failed{': ' if failed else ''}{', '.join(failed)}")
    raise typer.Exit(1 if failed else 0)


def _say(file: object, text: str) -> None:
    print(text, flush=True)
    print(text, file=file, flush=True)  # type: ignore[call-overload]


if __name__ == "__main__":
    typer.run(main)
