"""The examples at the end of each command's help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typer import Typer

KAFKA: Final = "kafka://127.0.0.1:9092"
POSTGRESQL: Final = "postgresql+psycopg://me@127.0.0.1/shop"
EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "": ("txcore demo", "txcore COMMAND --help"),
    "demo": ("txcore demo", f"txcore demo --broker {KAFKA} \\\n    --database {POSTGRESQL}"),
    "backends": ("txcore backends", "txcore backends --json"),
    "checker": (
        "txcore checker --config txcore.toml",
        f"txcore checker --broker {KAFKA} --group shop \\\n    --database {POSTGRESQL}",
    ),
    "config": ("txcore config init", "txcore config check"),
    "config init": ("txcore config init", "txcore config init /etc/txcore/txcore.toml"),
    "config check": ("txcore config check txcore.toml",),
    "config reference": ("txcore config reference",),
    "audit": ("txcore audit --config txcore.toml", "txcore audit --mode once --since 2026-11-24T00:00:00Z"),
    "audit sql": (
        'txcore audit sql "SELECT verdict, transaction_id FROM open_findings"',
        'txcore audit sql "SELECT run, exit_code FROM runs ORDER BY run" --json',
    ),
    "audit acknowledge": (
        'txcore audit acknowledge LOST 0199a3c2-1d4e-7c0a-9b2f-5f0e8d7c6b5a \\\n    --note "sent by hand"',
    ),
    "audit certificate": ("txcore audit certificate 42 --keys audit.keys --publish /mnt/heads.txt",),
    "audit proof": ("txcore audit proof 0199a3c2-1d4e-7c0a-9b2f-5f0e8d7c6b5a --out proof.json",),
    "audit verify": ("txcore audit verify message.json --proof proof.json --keys audit.keys",),
    "audit outbox": (
        (
            f"txcore audit outbox --broker {KAFKA} \\\n    --database {POSTGRESQL} \\\n"
            "    --layout eventuate --table message"
        ),
    ),
    "audit effects": ("txcore audit effects", "txcore audit effects orders --json"),
    "audit repair": ("txcore audit repair 12", "txcore audit repair 12 --apply"),
    "pending": ("txcore pending", "txcore pending --older-than 15m --topic orders.created"),
    "parked": ("txcore parked", "txcore parked --reason CHECKS_EXHAUSTED"),
    "show": ("txcore show 5aa3d8ed", "txcore show 5aa3d8ed --bodies"),
    "resume": (
        'txcore resume 5aa3d8ed --why "the listener was down"',
        "txcore resume --reason CHECKS_EXHAUSTED --yes",
    ),
    "commit": ('txcore commit 5aa3d8ed --why "confirmed by phone"',),
    "rollback": ('txcore rollback 5aa3d8ed --why "test data"',),
    "cancel": ('txcore cancel 01a20f07-9681-7fbd-82f9-98a65aa3d8ed --why "paid by phone"',),
    "top": ("txcore top", "txcore top --once --json"),
    "relay": ("txcore relay", "txcore relay --once", "txcore relay --layout debezium --table outbox"),
    "topics": (f"txcore topics create --broker {KAFKA} --target orders.created",),
    "topics create": (
        f"txcore topics create --broker {KAFKA} --target orders.created",
        "txcore topics create --partitions 4 --target orders.created --group shop",
    ),
    "topics verify": (f"txcore topics verify --broker {KAFKA} --group shop",),
    "topics describe": (f"txcore topics describe --broker {KAFKA} --group shop",),
    "fence": (f"txcore fence create --database {POSTGRESQL}",),
    "fence create": (f"txcore fence create --database {POSTGRESQL}",),
    "fence stats": ("txcore fence stats",),
    "fence prune": ("txcore fence prune --older-than 7d", "txcore fence prune --older-than 7d --yes"),
    "fence identity": ("txcore fence identity",),
    "fence adopt": ('txcore fence adopt --reason "restored from the dump of Monday" --yes',),
    "fence ddl": ("txcore fence ddl --dialect postgresql",),
    "table": ("txcore table stats",),
    "table stats": ("txcore table stats",),
    "table parked": ("txcore table parked", "txcore table parked --dropped"),
    "table resume": ("txcore table resume 01a20f07-9681-7fbd-82f9-98a65aa3d8ed",),
    "table drop": ('txcore table drop 01a20f07-9681-7fbd-82f9-98a65aa3d8ed --why "test data"',),
    "permissions": (f"txcore permissions {KAFKA} --group shop --role producer \\\n    --target orders.created",),
    "doctor": (
        f"txcore doctor {KAFKA} --group shop --target orders.created",
        f"txcore doctor {KAFKA} --group shop --dev \\\n    --database {POSTGRESQL}",
    ),
}


def add_to(app: Typer) -> None:
    """Give each command and group of *app* its examples."""
    app.info.epilog = _epilog("")
    _add_below(app, "")


def _add_below(app: Typer, before: str) -> None:
    described: list[Any] = [*app.registered_commands, *app.registered_groups]
    for each in described:
        name = f"{before}{each.name}"
        each.epilog = _epilog(name)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _add_below(group.typer_instance, f"{before}{group.name} ")


def _epilog(name: str) -> str:
    lines = "\n".join(f"  {example}" for example in EXAMPLES[name])
    return f"\b\n{'Examples' if len(EXAMPLES[name]) > 1 else 'Example'}:\n{lines}"
