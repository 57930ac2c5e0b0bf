"""The output of processes that are started for Spark is kept apart from the audit's own."""

from __future__ import annotations

import subprocess
import sys

import pytest
from txcore_spark.engines.noise import SparkOutput

TALKER = [sys.executable, "-c", "import sys; print('noise', file=sys.stderr)"]


def test_a_childs_standard_error_goes_into_the_file(capfd):
    """A process that the block starts writes into the file; this process writes where it did before."""
    output = SparkOutput(is_shown=False)
    with output.caught():
        subprocess.run(TALKER, check=True)
    sys.stderr.write("own\n")
    assert "own\n" == capfd.readouterr().err
    assert "noise\n" == output.path.read_text(encoding="utf-8")
    assert str(output.path) in output.hint
    output.forget()
    assert not output.path.exists()


def test_standard_error_is_restored_after_an_error(capfd):
    """A start that fails leaves standard error as it was."""
    output = SparkOutput(is_shown=False)
    with pytest.raises(FileNotFoundError), output.caught():
        subprocess.run(["/nowhere/java"], check=True)
    subprocess.run(TALKER, check=True)
    assert "noise\n" == capfd.readouterr().err
    output.forget()


def test_it_is_shown_when_asked_for(capfd):
    """Where it is shown, there is no file, and no hint at one."""
    output = SparkOutput(is_shown=True)
    with output.caught():
        subprocess.run(TALKER, check=True)
    output.forget()
    assert ("noise\n", "", None) == (capfd.readouterr().err, output.hint, output.path)
