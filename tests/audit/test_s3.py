"""The audit with its store on S3, which a server on this machine speaks.

`make audit-s3` runs this file on DuckDB, and `make audit-s3-spark` on Spark, too.
"""

from __future__ import annotations

import os
import re
import subprocess
import urllib.request

import pytest
from beds import Bed, found_in
from conftest import SETTINGS, require_spark
from txcore_conformance.kit import wait_until
from txcore_spark import packs
from txcore_spark.command import Wish, run
from txcore_spark.engines.session import open_session
from txcore_spark.store import Store
from txcore_spark.tables.views import ask

from txcore.audit.verdicts import Verdict
from txcore.config import load

SERVER = os.environ.get("TXCORE_MOTO_SERVER", "")
JARS = os.environ.get("TXCORE_S3_JARS", "")
REMOTE = "s3a://audit/txcore"
COMPARED = ("counts", "severities", "exit_code", "topics")

pytestmark = pytest.mark.skipif(not SERVER, reason="`make audit-s3` installs a server that speaks S3")


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    """The URL of a server that speaks S3."""
    log = tmp_path_factory.mktemp("s3") / "log"
    with log.open("wb") as output, subprocess.Popen([SERVER, "-H", "127.0.0.1", "-p", "0"], stderr=output) as server:
        try:
            yield wait_until(lambda: re.search(r"http://127\.0\.0\.1:\d+", log.read_text()), "a server for S3")[0]
        finally:
            server.terminate()


@pytest.fixture(scope="module", params=["duckdb", "spark"])
def engine(request, endpoint):
    """The name of each engine; Spark has a session that opens the server."""
    if request.param == "duckdb":
        yield request.param
        return
    if not JARS:
        pytest.skip("`make audit-s3-spark` fetches the jars with which Spark opens S3")
    require_spark()
    options = {"endpoint": endpoint, "endpoint.region": "us-east-1", "path.style.access": "true"}
    options |= {"connection.ssl.enabled": "false", "access.key": "key", "secret.key": "secret"}
    settings = SETTINGS | {f"spark.hadoop.fs.s3a.{name}": value for name, value in options.items()}
    session = open_session("local[2]", "2g", settings, JARS)
    yield request.param
    session.stop()


@pytest.fixture
def bed(tmp_path, endpoint, monkeypatch):
    """A new group, and an empty bucket that the usual variables name; two runs make a pack."""
    monkeypatch.setattr(packs, "FAN", 2)
    for name, value in (
        ("ENDPOINT_URL", endpoint),
        ("ALLOW_HTTP", "true"),
        ("DEFAULT_REGION", "us-east-1"),
        ("ACCESS_KEY_ID", "key"),
        ("SECRET_ACCESS_KEY", "secret"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    for path in ("moto-api/reset", "audit"):
        method = "POST" if path == "moto-api/reset" else "PUT"
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{path}", method=method), timeout=30).close()
    made = Bed(tmp_path)
    yield made
    made.writer.close()


def audited(bed, store, wish):
    """Audit with this store, and return its newest manifest."""
    code = run(load(bed.config(), settings=[f"audit.store={store}"], environment={}), wish)
    manifest = next(Store(store).newest_first())
    assert code == manifest["exit_code"]
    return manifest


def test_steps_on_s3_end_like_those_in_a_folder(engine, bed, capsys):
    """Four steps, of which packs are made, have the verdicts and the tables of the same steps on a disk."""
    folder, wish = f"{bed.folder}/here", Wish(engine=engine)
    for kinds in ([None, Verdict.LOST], [Verdict.PHANTOM], [None, Verdict.CONFLICT], [Verdict.DUP_TARGET]):
        bed.write(*kinds, size=3)
        here, there = audited(bed, folder, wish), audited(bed, REMOTE, wish)
        assert {name: here[name] for name in COMPARED} == {name: there[name] for name in COMPARED}
        assert found_in(Store(folder), here) == found_in(Store(REMOTE), there)
    assert f"report: {REMOTE}/runs/000004/report.html" in capsys.readouterr().out
    assert [(1, 4, 2)] == [(each.first, each.last, each.level) for each in Store(REMOTE).packs()]
    sql = "SELECT verdict, transaction_id FROM open_findings ORDER BY ALL"
    assert ask(Store(folder), sql).rows == ask(Store(REMOTE), sql).rows
    assert 4 <= len(ask(Store(REMOTE), sql).rows)


def test_rows_that_are_not_kept_leave_results_on_s3(engine, bed):
    """Without landed rows the run's results are there all the same."""
    bed.write(None, Verdict.LOST)
    manifest = audited(bed, REMOTE, Wish(mode="once", engine=engine, is_landed=False))
    assert {"LOST": 1} == manifest["counts"]
    assert not Store(REMOTE).has(1, "rows")


def test_a_store_that_cannot_be_reached_is_named_in_one_sentence(engine, bed, monkeypatch, capsys):
    """A bucket that is not there, and an endpoint without TLS that was not allowed, end with the cause."""
    wish = Wish(engine=engine)
    loaded = load(bed.config(), settings=["audit.store=s3a://nowhere/txcore"], environment={})
    assert 4 == run(loaded, wish)
    assert "nowhere" in capsys.readouterr().err
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    assert 4 == run(load(bed.config(), settings=[f"audit.store={REMOTE}"], environment={}), wish)
    assert "URL scheme is not allowed" in capsys.readouterr().err
