"""`python -m benchmarks.fuzz`: bytes of every kind for the wire decoders; prints counts and the memory used.

Random bytes, truncated and flipped records, MessagePack that nests or announces more than it holds. A decoder returns
a record or raises `WireFormatError`, nothing else; a megabyte of garbage costs no more than a megabyte.
"""

from __future__ import annotations

import random
import resource
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from txcore import wire
from txcore.errors import WireFormatError
from txcore.records import Half, Op, OpKind, ParkCode, Parked, TargetMessage

ID = bytes(range(16))
MESSAGES = [TargetMessage("orders.created", b"42", b"x" * 200, {"kind": "order", "sig": b"\xff\x00"})]
HALF = wire.encode_half(Half(1, ID, "orders", 3, 0, 1_700_000_000_000, 6_000, 0, 0, True, "p:1", MESSAGES))
OPS = wire.encode_ops([Op(kind, ID, 0, "c:1", 1, b"t" * 16, 2, 1, 1, "why") for kind in OpKind])
PARKED = wire.encode_parked(Parked(1, ID, 0, ParkCode.POISON, "why", 0, "c:1", 1, b"t" * 16, HALF, [0]))
DECODERS: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "half": (wire.decode_half, HALF),
    "op": (wire.decode_ops, OPS),
    "parked": (wire.decode_parked, PARKED),
}
LENGTHS = ("\xdd", "\xdf", "\xdb", "\xc6")


def inputs(rng: random.Random, valid: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield one input of each kind."""
    yield "random", rng.randbytes(rng.randrange(400))
    yield "truncated", valid[: rng.randrange(len(valid))]
    flipped = bytearray(valid)
    for _ in range(rng.randrange(1, 8)):
        flipped[rng.randrange(len(flipped))] = rng.randrange(256)
    yield "flipped", bytes(flipped)
    place = rng.randrange(len(valid))
    yield "spliced", valid[:place] + rng.randbytes(rng.randrange(20)) + valid[place:]
    yield "nested", bytes([rng.choice([0x91, 0x81, 0x92])]) * rng.randrange(1, 5_000)
    size = struct.pack(">I", rng.randrange(1 << 31))
    yield "promising", valid[:place] + rng.choice(LENGTHS).encode("latin-1") + size


def main(
    seconds: Annotated[float, typer.Option(min=1, help="Seconds to run.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Seed of an earlier run, to repeat its inputs until the time is over.")] = 1,
) -> None:
    """Decode such bytes and print the counts of results."""
    rng, counts, end_s = random.Random(seed), Counter[str](), time.monotonic() + seconds
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    while time.monotonic() < end_s:
        for name, (decode, valid) in DECODERS.items():
            for kind, body in inputs(rng, valid):
                try:
                    decode(body)
                    counts[f"{name} {kind} decoded"] += 1
                except WireFormatError:
                    counts[f"{name} {kind} refused"] += 1
    for _ in range(20):
        for decode, _valid in DECODERS.values():
            try:
                decode(rng.randbytes(1 << 20))
            except WireFormatError:
                counts["1 MiB refused"] += 1
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for what, count in sorted(counts.items()):
        print(f"{what:24}{count:>12,}")
    print(f"{counts.total():,} inputs (seed {seed}), no failure; {peak_mb - before_mb:.0f} MB more than at the start")


if __name__ == "__main__":
    typer.run(main)
