"""The cost of signing: processor microseconds for each record, signed and verified, on one thread.

    python -m benchmarks.signing

A transaction writes one half and one op; its checker, where it reads them, verifies both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from txcore import wire
from txcore.records import Half, LogKind, Op, OpKind, TargetMessage
from txcore.signing import GroupKeys

COUNT: Final = 20_000
ROUNDS: Final = 5
ID: Final = bytes(range(16))
BODY: Final = wire.encode_half(
    Half(1, ID, "orders", 3, 0, 5, 100, 0, 3, fenced=True, by="p", messages=[TargetMessage("t", None, bytes(300), {})])
)


def cpu_us(step: Callable[[], object]) -> list[float]:
    """Return the processor microseconds of one step, a figure for each round, sorted."""
    figures = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        for _ in range(COUNT):
            step()
        figures.append((time.process_time() - began_s) / COUNT * 1e6)
    return sorted(figures)


def main() -> None:
    """Measure, and print minimum, median and maximum."""
    keys = GroupKeys(sign_with="one", keys={"one": bytes(range(32))})
    op = Op(OpKind.COMMIT, ID, 0, "p", 7)
    half, ops = keys.sign("orders", 3, LogKind.HALF, BODY), wire.encode_ops([keys.sign_op("orders", 3, op)])
    steps: dict[str, Callable[[], object]] = {
        "sign a half of 300 B": lambda: keys.sign("orders", 3, LogKind.HALF, BODY),
        "verify it": lambda: keys.opened("orders", 3, LogKind.HALF, half),
        "sign an op": lambda: keys.sign_op("orders", 3, op),
        "verify it in its record": lambda: keys.opened("orders", 3, LogKind.OP, ops),
    }
    print(f"{'CPU us':24}  min  median  max")
    for name, step in steps.items():
        figures = cpu_us(step)
        print(f"{name:24} {figures[0]:4.1f}  {figures[len(figures) // 2]:6.1f} {figures[-1]:4.1f}")
    print(f"bytes: half {len(BODY)} -> {len(half)}, op {len(wire.encode_ops([op]))} -> {len(ops)}")


if __name__ == "__main__":
    main()
