"""The runs of the audit in a catalogue that takes OpenLineage, over real HTTP."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from txcore_spark.command import Wish, run
from txcore_spark.lineage import place_of_store, place_of_table, places_of, reported

from txcore.audit.verdicts import SEVERITIES, Severity, Verdict
from txcore.errors import ConfigError

DUCKDB = Wish(engine="duckdb")


@pytest.fixture
def catalogue(monkeypatch):
    """The events that arrive at a catalogue, which the client finds by its own variables."""
    events = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            events.append((self.path, self.headers["authorization"], body))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_):
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "a-key")
    yield events
    server.shutdown()
    serving.join()
    server.server_close()


def test_a_run_is_reported_with_its_verdicts_and_datasets(bed, catalogue):
    """Begin and end have one run id; a verdict with findings is a failed test, each other one a passed test."""
    bed.write(*[None] * 3, Verdict.LEAK)
    assert 2 == run(bed.loaded(lineage='"production"'), DUCKDB)
    (begin, end) = [body for path, key, body in catalogue if (path, key) == ("/api/v1/lineage", "Bearer a-key")]
    assert ["START", "COMPLETE"] == [each["eventType"] for each in (begin, end)]
    assert begin["run"]["runId"] == end["run"]["runId"]
    assert {"namespace": "production", "name": "txcore.audit"} == {
        key: end["job"][key] for key in ("namespace", "name")
    }
    tests = {each["name"]: each for each in end["run"]["facets"]["test"]["tests"]}
    assert {each.name for each, severity in SEVERITIES.items() if severity is not Severity.INFO} == set(tests)
    assert ["LEAK"] == [name for name, each in tests.items() if each["status"] == "fail"]
    assert ("error", "0", "1") == tuple(tests["LEAK"][key] for key in ("severity", "expected", "actual"))
    assert "warn" == tests["DUP_TARGET"]["severity"]
    inputs = [(each["namespace"], each["name"]) for each in end["inputs"]]
    assert sorted(inputs) == inputs
    assert (f"sqlite:///{bed.folder}/broker.db", "orders.created") in inputs
    assert (f"sqlite:///{bed.folder}/shop.db", "txcore_tx") in inputs
    assert [("file", f"{bed.folder}/audit")] == [(each["namespace"], each["name"]) for each in end["outputs"]]


def test_a_run_that_fails_is_reported_as_failed(bed, catalogue):
    """The catalogue shows what kind of error it was."""
    bed.write(None)
    (bed.folder / "audit").write_text("this is no folder")
    assert 4 == run(bed.loaded(lineage='"production"'), DUCKDB)
    assert ["START", "FAIL"] == [body["eventType"] for _, _, body in catalogue]
    assert catalogue[-1][2]["run"]["facets"]["errorMessage"]["message"]


def test_a_run_whose_result_cannot_be_written_is_reported_as_failed(bed, catalogue):
    """It ends with an error, so the catalogue shows no finished run."""
    bed.write(None)
    loaded = bed.loaded(lineage='"production"', textfile=f'"{bed.folder}/missing/txcore.prom"')
    with pytest.raises(ConfigError, match="cannot be written"):
        run(loaded, DUCKDB)
    assert ["START", "FAIL"] == [body["eventType"] for _, _, body in catalogue]


def test_a_run_that_is_interrupted_is_reported_as_aborted(catalogue):
    """An operator's Ctrl-C is no failure of the audit."""
    with pytest.raises(KeyboardInterrupt), reported("production", "file:///var/audit"):
        raise KeyboardInterrupt
    assert ["START", "ABORT"] == [body["eventType"] for _, _, body in catalogue]
    assert "BATCH" == catalogue[0][2]["job"]["facets"]["jobType"]["processingType"]


def test_a_catalogue_that_does_not_answer_fails_no_audit(bed, monkeypatch, capsys):
    """The result is that of the audit, and one line for each event says what is missing."""
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", "http://127.0.0.1:1")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY", '{"total": 0}')
    bed.write(None)
    assert 0 == run(bed.loaded(lineage='"production"'), DUCKDB)
    lines = capsys.readouterr().err.splitlines()
    assert 2 == sum(line.startswith("txcore: the run is missing in OpenLineage: ") for line in lines)


def test_nothing_is_reported_unless_it_is_asked_for(bed, catalogue):
    """Variables of OpenLineage alone, as a scheduler sets them for all its programs, report nothing."""
    bed.write(None)
    assert 0 == run(bed.loaded(), DUCKDB)
    assert [] == catalogue


@pytest.mark.parametrize(
    ("url", "table", "place"),
    [
        ("postgresql+psycopg://db:6432/shop", "txcore_tx", ("postgres://db:6432", "shop.public.txcore_tx")),
        ("postgresql://u@db/shop", "own.txcore_tx", ("postgres://db:5432", "shop.own.txcore_tx")),
        ("postgresql:///shop", "txcore_tx", ("postgres://localhost:5432", "shop.public.txcore_tx")),
        ("mysql+pymysql://db/shop", "txcore_tx", ("mysql://db:3306", "shop.txcore_tx")),
        ("sqlite:////data/shop.db", "txcore_tx", ("sqlite:////data/shop.db", "txcore_tx")),
    ],
)
def test_a_table_has_the_name_of_the_conventions(url, table, place):
    """Host with port, then database, schema and table, so that the events of other programs name the same table."""
    assert place == place_of_table(url, table)


@pytest.mark.parametrize(
    ("url", "namespace"),
    [
        ("kafka://one:9092,two:9092", "kafka://one:9092"),
        ("rabbitmq://user@mq:5672/shop", "rabbitmq://mq:5672/shop"),
        ("nats://[::1]:4222", "nats://[::1]:4222"),
        ("kafka://one", "kafka://one:9092"),
        ("acme://one", "acme://one"),
    ],
)
def test_a_topic_is_in_the_namespace_of_its_first_server(url, namespace):
    """The user is left out."""
    origin = {"brokers": {"main": url}, "databases": {}}
    named = [
        ("target", "main", "orders"),
        ("op", "main", "g"),
        ("target", "removed", "old"),
        ("fence", "removed", "old"),
    ]
    sources = [{"log": log, "backend": backend, "name": name} for log, backend, name in named]
    assert [(namespace, "orders")] == places_of({"origin": origin, "sources": sources})


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("file:///var/audit", ("file", "/var/audit")),
        ("s3a://bucket/audit", ("s3://bucket", "audit")),
        ("abfss://c@a/audit", ("abfss://c@a", "audit")),
    ],
)
def test_the_store_is_in_its_bucket(uri, place):
    """Spark's `s3a` is `s3` there."""
    assert place == place_of_store(uri)
