"""A process that does not end shows where its threads are."""

from __future__ import annotations

import subprocess
import sys

from txcore_conformance.machine import stacks_of

CHILD = """
import faulthandler, signal, threading

def stuck():
    print("ready", flush=True)
    threading.Event().wait()

faulthandler.register(signal.SIGUSR1)
stuck()
"""


def test_the_stacks_name_the_function_that_waits(tmp_path):
    log = tmp_path / "child.log"
    with log.open("wb") as errors:
        command = [sys.executable, "-c", CHILD]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
    try:
        assert b"ready\n" == child.stdout.readline()
        assert "in stuck" in stacks_of(child, log)
    finally:
        child.kill()
        child.communicate()
    assert "" == stacks_of(child, log)
