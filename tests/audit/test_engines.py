"""The engines: which one runs, what each one needs, and that a store may change from one to the other."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import txcore_spark
from beds import found_in
from txcore_spark import expressions as F  # noqa: N812
from txcore_spark.command import Wish, run
from txcore_spark.engines import choice
from txcore_spark.engines.noise import SparkOutput
from txcore_spark.job import Audit

from txcore import cli
from txcore.audit.engines import DUCKDB, ENGINES, NO_ENGINE, SPARK
from txcore.audit.verdicts import Verdict
from txcore.config import load
from txcore.errors import BackendNotInstalledError, ConfigError, UsageError

ROOT = Path(txcore_spark.__file__).parent
FOREIGN = {"pyspark", "duckdb", "pandas", "py4j"}
#: The command in a process that has neither pyspark nor Java.
ALONE = """
import sys
from importlib.machinery import PathFinder

found = PathFinder.find_spec
absent = {"pyspark", "pandas", "py4j"}
PathFinder.find_spec = lambda name, *more: None if name.partition(".")[0] in absent else found(name, *more)
from txcore.cli import main
main(["audit", "--config", sys.argv[1], "--mode", "once", "--json", *sys.argv[2:]])
"""


def installed(monkeypatch, *modules):
    """Let only these engines' modules be found."""
    found = {name: object() for name in modules}
    monkeypatch.setattr(choice, "find_spec", found.get)


def test_spark_is_the_default_where_it_is_installed(monkeypatch):
    """Without it DuckDB is; an engine that is asked for must be there."""
    installed(monkeypatch, "pyspark", "duckdb")
    assert [SPARK, DUCKDB, SPARK] == [choice.chosen(wanted) for wanted in ("", *ENGINES)]
    installed(monkeypatch, "duckdb")
    assert DUCKDB == choice.chosen("")
    with pytest.raises(BackendNotInstalledError, match=r"txcore\[spark\]"):
        choice.chosen(SPARK)
    installed(monkeypatch, "pyspark")
    with pytest.raises(BackendNotInstalledError, match=r"txcore\[audit\]"):
        choice.chosen(DUCKDB)


def test_without_an_engine_the_error_names_both_extras(monkeypatch):
    """One of the two is enough."""
    installed(monkeypatch)
    with pytest.raises(UsageError) as raised:
        choice.chosen("")
    assert NO_ENGINE == str(raised.value)
    assert all(f'"txcore[{extra}]"' in NO_ENGINE for extra in ("audit", "spark"))


def test_the_command_needs_neither_pyspark_nor_java(bed):
    """It chooses DuckDB by itself, and finds what is there."""
    bed.write(None, Verdict.LOST)
    environment = {**os.environ, "PATH": str(bed.folder), "JAVA_HOME": ""}
    command = [sys.executable, "-c", ALONE, str(bed.config())]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert "" == ended.stderr
    summary = json.loads(ended.stdout)
    assert (2, {"LOST": 1}) == (ended.returncode, summary["counts"])
    refused = subprocess.run(
        [*command, "--engine", "spark"], capture_output=True, text=True, env=environment, check=False
    )
    assert (4, 1) == (refused.returncode, len(refused.stderr.splitlines()))
    assert "txcore[spark]" in refused.stderr


@pytest.mark.parametrize(
    ("audit", "named"),
    [
        ({"kafka_source": "spark"}, "audit.kafka_source"),
        ({"driver_memory": "much"}, "audit.driver_memory"),
    ],
)
def test_duckdb_refuses_what_only_spark_has(bed, audit, named):
    """Spark's reader of Kafka and a size that is none are refused before anything is read."""
    loaded = load(bed.config(), environment={}, settings=[f"audit.{key}={value}" for key, value in audit.items()])
    with pytest.raises(ConfigError) as raised:
        choice.open_engine(DUCKDB, loaded, {}, SparkOutput(is_shown=True))
    assert named == raised.value.key


def test_steps_of_both_engines_continue_each_other(bed, duck, spark):
    """The files of a run do not depend on the engine."""
    expected = {}
    for engine, kind in (
        (spark, Verdict.LOST),
        (duck, Verdict.LEAK),
        (spark, Verdict.CONFLICT),
        (duck, Verdict.PHANTOM),
    ):
        bed.write(None, parts={"half", "row"})
        (history,) = bed.write(kind, size=2)
        expected[history.transaction_id] = {kind.name}
        manifest = Audit(engine, bed.loaded(), bed.store()).incremental()
        found = found_in(bed.store(), manifest)
        assert set(expected) == set(found)
    whole = Audit(duck, bed.loaded(), bed.store()).once()
    assert manifest["counts"] == whole["counts"]
    assert found == found_in(bed.store(), whole)
    assert 5 * [False] == [bool(bed.store().manifest(number)["gaps"]) for number in bed.store().finished()]


def test_duckdb_holds_nothing_of_a_step_when_the_next_one_begins(bed, duck):
    """The mode `continuous` runs steps for ever in one process; only a step without landed rows holds them."""
    bed.write(None, Verdict.LOST)
    audit = Audit(duck, bed.loaded(), bed.store())

    def tables():
        return duck.connection.execute("SELECT count(*) FROM duckdb_tables()").fetchone()[0]

    assert {"LOST": 1} == audit.incremental()["counts"]
    assert 0 == tables()
    assert {"LOST": 1} == audit.once(is_landed=False)["counts"]
    assert 2 == tables()
    assert {"LOST": 1} == audit.incremental()["counts"]
    assert 0 == tables()


def test_only_engines_import_an_engine():
    """A rule that knew one would need a second copy for the other; comparisons and tables have one engine."""
    found = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if FOREIGN & {name.partition(".")[0] for name in names}:
                found.add(path.relative_to(ROOT).parts[0])
    assert {"engines", "tables"} == found


def test_rarer_expressions_have_the_same_values(engine):
    """Bytes as numbers, text of bytes, digests in their order, and what does not fit."""
    frame = engine.read([]).aggregate([], F.count_of().alias("n"))
    half, top = F.lit(1 << 62), F.lit("8000000000000000ffffffffffffffff")
    shown = frame.select(
        "n",
        F.signed_of_hex(top, 1).alias("low"),
        F.signed_of_hex(top, 17).alias("minus"),
        F.bit(F.lit(70), 62).alias("bit"),
        F.texts(F.lit("a"), F.lit(None).cast("string"), F.lit("b'c")).alias("texts"),
        F.lookup({1: "one"}, F.col("n") + 1).alias("named"),
        F.lookup({7: "seven"}, F.col("n")).alias("number"),
        F.hex_text(F.lit(b"\x00\xab")).alias("hex"),
        (F.lit(None).cast("int") == 1).alias("unknown"),
        half.shifted_right(2).alias("quarter"),
    )
    (found,) = shown.collect()
    assert {
        "n": 0, "low": -(1 << 63), "minus": -1, "bit": 1 << 62, "texts": ["a", "b'c"], "named": "one", "number": "0",
        "hex": "00ab", "unknown": None, "quarter": 1 << 60,
    } == found  # fmt: skip


def test_a_sum_that_does_not_fit_is_null_if_it_is_tried(engine):
    """The screening depends on it: a transaction with very many rows needs a second look."""
    frame = engine.read([]).aggregate([], F.count_of().alias("n")).select(F.lit((1 << 63) - 1).alias("big"))
    twice = frame.union(frame)
    assert [{"sum": None}] == twice.aggregate([], F.try_sum_of("big").alias("sum")).collect()


def test_an_unknown_engine_is_refused(bed, capsys):
    """The script for spark-submit has its own parser; the error of the command names the engines."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["audit", "--engine", "abacus", "--config", str(bed.config())])
    assert 4 == ended.value.code
    assert "duckdb, spark" in capsys.readouterr().err
    assert 0 == run(bed.loaded(), Wish(engine=DUCKDB))
