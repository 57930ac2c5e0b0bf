"""A group on SQLite whose records the benchmarks of the audit write without the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import create_engine
from txcore_spark.anomalies import History, Maker
from txcore_spark.selftest.writers import Writer, open_writer, write_rows

import txcore

GROUP = "orders"


def prepared(folder: Path, audit: str = "") -> tuple[Writer, Maker]:
    """Make a folder with a configuration, `txcore.toml`, a broker and a database; return what writes there.

    Args:
        audit: Further lines of the configuration's section `audit`.
    """
    folder.mkdir(parents=True)
    (folder / "txcore.toml").write_text(
        f'[audit]\nstore = "{folder}/audit"\n{audit}[backends.main]\nurl = "sqlite:///{folder}/broker.db"\n'
        f'[databases.main]\nurl = "sqlite:///{folder}/shop.db"\n[groups.{GROUP}]\ndatabase = "main"\n',
        encoding="utf-8",
    )
    engine = create_engine(f"sqlite:///{folder}/shop.db")
    txcore.SqlFence(engine).create()
    engine.dispose()
    backend = txcore.connect(f"sqlite:///{folder}/broker.db")
    backend.ensure_group(GROUP, 2).result(10)
    backend.close()
    writer = open_writer(f"sqlite:///{folder}/broker.db", GROUP)
    writer.prepare(["a", "b"])
    return writer, Maker(GROUP, 2, ["a", "b"], key_as_header=False)


def write(folder: Path, writer: Writer, histories: Sequence[History]) -> None:
    """Write the fence rows and the records of histories."""
    rows = [(each.transaction_id, r.body[0], r.body[1:]) for each in histories for r in each.records if r.log == "row"]
    write_rows(f"sqlite:///{folder}/shop.db", "txcore_tx", GROUP, rows)
    writer.write((each.partition, r) for each in histories for r in each.records if r.log != "row")
