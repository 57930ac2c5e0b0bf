"""Running the command line as users do: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Ran:
    """The exit status and the output of a command."""

    status: int
    output: str
    errors: str

    @property
    def sentence(self) -> str:
        """The only sentence on standard error; it fails if there is anything else."""
        lines = self.errors.splitlines()
        assert [line[:8] for line in lines] == ["txcore: "], self.errors
        return lines[0].removeprefix("txcore: ")

    @property
    def width(self) -> int:
        """The length of the longest line."""
        return max(len(line.rstrip()) for line in self.output.splitlines())


class Command:
    """Runs `txcore` in a folder of its own, 80 columns wide."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *arguments: str, before: str = "", timeout_s: float = 100) -> Ran:
        """Run the command; *before* is Python that its process runs first, to break something."""
        program = ["-c", f"{before}\nfrom txcore.cli import main\nmain()"] if before else ["-m", "txcore.cli"]
        ended = subprocess.run(
            [sys.executable, *program, *arguments],
            cwd=self.folder,
            env={**os.environ, "COLUMNS": "80", "TMPDIR": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Ran(ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture
def txcore(tmp_path: Path) -> Command:
    """The command line in an empty folder."""
    return Command(tmp_path)
