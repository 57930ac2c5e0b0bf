"""`txcore audit sql` and `acknowledge`: the views, the output, and one sentence for each mistake."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from beds import Bed
from txcore_spark.command import Wish, run
from txcore_spark.tables.views import VIEWS

from txcore import cli
from txcore.audit.engines import DUCKDB
from txcore.audit.verdicts import Verdict
from txcore.ids import id_text

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


@pytest.fixture(scope="module")
def bed(tmp_path_factory):
    """A group with one run: one transaction of each of three kinds."""
    made = Bed(tmp_path_factory.mktemp("bed"))
    made.write(None, Verdict.LOST, Verdict.LEAK, size=2)
    run(made.loaded(), Wish(engine=DUCKDB))
    yield made
    made.writer.close()


def command(bed, name, *arguments):
    """Run the command and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["audit", name, *arguments, "--config", str(bed.folder / "txcore.toml")])
    return ended.value.code


def answered(bed, capsys, sql):
    """Return the rows of a query as programs get them."""
    capsys.readouterr()
    assert 0 == command(bed, "sql", sql, "--json")
    return json.loads(capsys.readouterr().out)


def test_each_view_can_be_asked(bed, capsys):
    """Each one has rows after a run with findings."""
    for view in VIEWS:
        assert answered(bed, capsys, f"SELECT * FROM {view}"), view


@pytest.mark.parametrize("sql", re.findall(r'txcore audit sql "(.+?)"', PAGE.read_text(encoding="utf-8"), re.DOTALL))
def test_each_query_of_the_page_has_an_answer(bed, capsys, sql):
    """The queries of the documentation find rows in a store with findings, in 80 columns."""
    sql = sql.replace("\\\n", " ")
    assert answered(bed, capsys, sql)
    assert 0 == command(bed, "sql", sql)
    assert 80 >= max(map(len, capsys.readouterr().out.splitlines()))


def test_landed_rows_have_names(bed, capsys):
    """Kinds, logs and groups are names, ids are texts, and a transaction has its numbers."""
    identity = id_text(next(each for each, kinds in bed.expected.items() if kinds == {"LOST"}))
    found = answered(bed, capsys, f"SELECT * FROM transactions WHERE transaction_id = '{identity}'")
    names = ("producer_group", "messages", "targets", "halves", "commits", "rollbacks", "fence_state")
    assert [("orders", 2, 0, 1, 1, 0, 1)] == [tuple(each[name] for name in names) for each in found]
    kinds = answered(
        bed, capsys, f"SELECT DISTINCT kind, op FROM records WHERE transaction_id = '{identity}' ORDER BY ALL"
    )
    assert [("half", None), ("op", "COMMIT"), ("row", None)] == [(each["kind"], each["op"]) for each in kinds]


def test_output_fits_into_80_columns(bed, capsys):
    """Few columns are a table; a row that does not fit has one line for each value."""
    capsys.readouterr()
    assert 0 == command(bed, "sql", "SELECT run, mode, exit_code FROM runs")
    printed = capsys.readouterr()
    assert ["run", "mode", "exit_code"] == printed.out.splitlines()[0].split()
    assert "1 row\n" == printed.err
    assert 0 == command(bed, "sql", "SELECT * FROM findings ORDER BY verdict")
    shown = capsys.readouterr().out.splitlines()
    assert ["row 1", "row 2"] == [each for each in shown if each.startswith("row")]
    assert "LEAK" in next(each for each in shown if each.startswith("  verdict"))
    assert 80 >= max(map(len, shown))


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("SELECT nothing FROM findings", "nothing"),
        ("SELECT * FROM nowhere", "nowhere"),
        ("SELEC 1", "SELEC"),
        ("", "one SELECT"),
        ("SELECT 1; SELECT 2", "one SELECT"),
        ("DELETE FROM findings", "one SELECT"),
        ("CREATE TABLE mine AS SELECT 1", "one SELECT"),
        ("COPY findings TO 'findings.csv'", "one SELECT"),
        ("SET enable_external_access = true", "one SELECT"),
        ("SELECT * FROM read_text('/etc/hostname')", "disabled"),
        ("SELECT CAST('x' AS INTEGER)", "'x'"),
    ],
)
def test_a_wrong_query_is_one_sentence(bed, capsys, sql, named):
    """Only the store's views can be read, and nothing can be written."""
    capsys.readouterr()
    assert 4 == command(bed, "sql", sql)
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line


def test_a_store_without_tables_says_so(bed, capsys):
    """No run has written any yet."""
    capsys.readouterr()
    assert 4 == command(bed, "sql", "SELECT 1", "--set", f"audit.store={bed.folder}/other")
    assert "no tables yet" in capsys.readouterr().err


def test_an_acknowledged_finding_stays_a_violation(bed, capsys):
    """The finding has name and note, the run says how many are acknowledged, and its exit code is the same."""
    identity = id_text(next(each for each, kinds in bed.expected.items() if kinds == {"LOST"}))
    assert 0 == command(bed, "acknowledge", "lost", identity, "--by", "ada", "--note", 'it\'s "known"')
    assert f"LOST on {identity} is acknowledged by ada" in capsys.readouterr().out
    sql = "SELECT acknowledged_by, note, severity FROM open_findings WHERE acknowledged_at IS NOT NULL"
    expected = {"acknowledged_by": "ada", "note": 'it\'s "known"', "severity": "violation"}
    assert [expected] == answered(bed, capsys, sql)
    assert 2 == run(bed.loaded(), Wish(engine=DUCKDB))
    assert "acknowledged: 1 open finding LOST" in capsys.readouterr().out
    assert [expected] == answered(bed, capsys, sql)
    assert 2 == run(bed.loaded(), Wish(engine=DUCKDB, as_json=True))
    found = json.loads(capsys.readouterr().out)
    assert {"LOST": 1} == found["acknowledged"]
    assert "acknowledged by ada: it&#x27;s &quot;known&quot;" in Path(found["report"]).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("verdict", "identity", "named"),
    [("LOST", id_text(bytes(16)), "no open finding"), ("LOOST", id_text(bytes(16)), "LOOST"), ("LOST", "7", "UUID")],
)
def test_only_an_open_finding_can_be_acknowledged(bed, capsys, verdict, identity, named):
    """The sentence says what there is instead."""
    capsys.readouterr()
    assert 4 == command(bed, "acknowledge", verdict, identity, "--note", "known")
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
