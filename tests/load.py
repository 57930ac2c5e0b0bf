"""Keep the machine busy while other tests run: `python tests/load.py 8` until SIGTERM or Ctrl-C.

The load is what the kernel counts as running, these tests included, so that it is the same on machines of two and of
eight cores. It is made by the simulator, whose seeds are new ones; a violation is printed, and the exit code is then 1.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from txcore.signals import end_requested

SEEDS = 2_000
"""Seeds of one process, which then ends."""
LOOK_S = 0.5
LOOKS = 40
"""Looks at the run queue from which the mean is taken, 20 s in all; half of them are forgotten after a change."""
BAND = 0.5, 1.0
"""How far the mean may be below and above the wanted load."""


def running():
    """Return how many threads run or wait for a core, without this one."""
    return int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0]) - 1


def player(first):
    """Start a process that plays seeds."""
    play = ["-m", "txcore_conformance.sim", f"--seeds={SEEDS}", f"--first={first}", "--jobs=1"]
    return subprocess.Popen([sys.executable, *play], stdout=subprocess.PIPE, text=True)


def end(play):
    """End a process that plays seeds."""
    play.kill()
    play.communicate()


def hold(wanted):
    """Hold the load at *wanted* until a signal; return whether a seed broke an invariant."""
    first, players, looks, is_bad = time.time_ns() // 1_000_000 * SEEDS, [], deque(maxlen=LOOKS), False
    with end_requested() as requested:
        while not requested.wait(LOOK_S):
            looks.append(running())
            for each in [each for each in players if each.poll() is not None]:
                players.remove(each)
                printed = each.communicate()[0]
                if each.returncode:
                    is_bad = True
                    print(printed, flush=True)  # noqa: T201 - the output of a command
            if len(looks) < LOOKS:
                continue
            mean = sum(looks) / LOOKS
            if mean < wanted - BAND[0] and len(players) < wanted:
                players.append(player(first))
                first += SEEDS
            elif mean > wanted + BAND[1] and players:
                end(players.pop())
            else:
                continue
            for _ in range(LOOKS // 2):
                looks.popleft()
    for each in players:
        end(each)
    return is_bad


if __name__ == "__main__":
    sys.exit(hold(int(sys.argv[1])))
