"""The memory limits in `examples/deploy` hold one checker that has all of 64 partitions."""

from __future__ import annotations

import os
import re
import tracemalloc
from pathlib import Path

import pytest

from txcore.checker.read_halves import LEFT_IN_MAX, RECENT_MAX, ReadHalf, ReadHalves

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
MIB = 1 << 20
PARTITIONS = 64
BASE_BYTES = 100 * MIB
"""Bytes of memory of an idle checker with drivers and buffers: docs/checker.md."""
PARTITION_BYTES = 15_000_000
"""Most bytes of memory for the records of one partition, while an old half stays undecided there."""
LIMITS = {
    "txcore-checker.service": r"^MemoryMax=(\d+)M$",
    "compose.yaml": r"^  mem_limit: (\d+)m$",
    "Dockerfile": r"--memory (\d+)m ",
    "kubernetes/deployment.yaml": r"limits: \{memory: (\d+)Mi\}",
    "kubernetes/sidecar.yaml": r"name: checker\n(?:.*\n)*?.*limits: \{memory: (\d+)Mi\}",
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_fits_64_partitions(name):
    """Each limit leaves a quarter free above the most that 64 partitions take."""
    (limit,) = re.findall(LIMITS[name], (DEPLOY / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert (BASE_BYTES + PARTITIONS * PARTITION_BYTES) * 5 / 4 <= int(limit) * MIB


def test_a_partition_takes_no_more_than_the_limits_assume():
    """Closed records after an old undecided half take at most `PARTITION_BYTES`, however many there are."""
    halves = ReadHalves()

    def read(number, pending=None):
        half = ReadHalf(10**12 + number, os.urandom(16), 0, 10**13 + number, 0 if pending else 1, pending)
        halves._newest[half.transaction_id] = half
        halves._add(half)

    tracemalloc.start()
    try:
        read(0, object())  # the undecided one, of whatever size
        for number in range(1, 3 * LEFT_IN_MAX):
            read(number)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(halves._recent) == RECENT_MAX
    assert PARTITION_BYTES / 2 < most <= PARTITION_BYTES
