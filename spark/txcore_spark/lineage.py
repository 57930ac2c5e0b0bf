"""The runs of the audit as events of OpenLineage, for a catalogue such as Marquez or DataHub.

Where the events go, and with which key, OpenLineage's own client reads from its variables and its file. Source:
OpenLineage's documentation, "Python client", "Naming conventions" and "Test run facet".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import urlsplit

from sqlalchemy import make_url

from txcore.audit.verdicts import SEVERITIES, Severity
from txcore.backends.options import Server, servers_of, split_url
from txcore.errors import BackendNotInstalledError, TxcoreError
from txcore_spark.plan import FENCE, TARGET

JOB: Final = "txcore.audit"
PRODUCER: Final = "txcore"
FAILING: Final = (Severity.VIOLATION, Severity.INCONCLUSIVE)
"""Severities that a pipeline stops at; the others are warnings there."""
PORTS: Final = {"kafka": 9092, "rabbitmq": 5672, "nats": 4222, "postgresql": 5432, "mysql": 3306, "mariadb": 3306}
"""The port that a URL without one means; the names of the conventions have it."""

Report = Callable[[Mapping[str, Any]], None]


@contextmanager
def reported(namespace: str, store: str) -> Iterator[Report]:
    """Report a run, which begins with the block; the block hands its manifest over, or fails.

    A server that cannot be reached fails no audit: one line on standard error says that the run is missing there.

    Args:
        namespace: The namespace of the job `txcore.audit`; empty to report nothing.
        store: The URI of the store.

    Raises:
        BackendNotInstalledError: the extra `lineage` is not installed.
    """
    if not namespace:
        yield lambda _: None
        return
    events = _Events(namespace, store)
    events.begin()
    try:
        yield events.complete
    except BaseException as error:
        events.fail(error)
        raise
    finally:
        events.close()


class _Events:
    """The events of one run."""

    def __init__(self, namespace: str, store: str) -> None:
        try:
            from openlineage.client import OpenLineageClient, event_v2, facet_v2, uuid  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise BackendNotInstalledError("audit.lineage", "openlineage-python", "lineage") from error
        self._v2, self._facets = event_v2, facet_v2
        self._client = OpenLineageClient()
        self._run_id = str(uuid.generate_new_uuid())
        kind = facet_v2.job_type_job.JobTypeJobFacet("BATCH", PRODUCER.upper(), jobType="AUDIT")
        self._job = event_v2.Job(namespace, JOB, {"jobType": kind})
        self._output = event_v2.OutputDataset(*place_of_store(store))

    def begin(self) -> None:
        self._emit("START", {}, [])

    def complete(self, manifest: Mapping[str, Any]) -> None:
        """Report the result: each verdict is a test, and what was judged the inputs."""
        execution = self._facets.test_run.TestExecution
        tests = []
        for verdict, own in SEVERITIES.items():
            severity = Severity[manifest["severities"].get(verdict.name, own.name).upper()]
            if severity is not Severity.INFO:
                count = manifest["counts"].get(verdict.name, 0)
                stops = "error" if severity in FAILING else "warn"
                made = execution(verdict.name, "fail" if count else "pass", stops, description=verdict.value)
                made.expected, made.actual = "0", str(count)
                tests.append(made)
        inputs = [self._v2.InputDataset(*place) for place in places_of(manifest)]
        self._emit("COMPLETE", {"test": self._facets.test_run.TestRunFacet(tests)}, inputs)

    def fail(self, error: BaseException) -> None:
        """Report that the run failed or was interrupted; of a driver's error only its type: its text may be secret."""
        text = " ".join(str(error).split()) if isinstance(error, TxcoreError) else type(error).__name__
        facet = self._facets.error_message_run.ErrorMessageRunFacet(text, programmingLanguage="PYTHON")
        self._emit("FAIL" if isinstance(error, Exception) else "ABORT", {"errorMessage": facet}, [])

    def close(self) -> None:
        self._client.close()

    def _emit(self, state: str, facets: dict[str, Any], inputs: list[Any]) -> None:
        engine = self._facets.processing_engine_run.ProcessingEngineRunFacet(version("txcore"), name=PRODUCER)
        event = self._v2.RunEvent(
            eventTime=datetime.now(UTC).isoformat(),
            producer=PRODUCER,
            eventType=self._v2.RunState[state],
            run=self._v2.Run(self._run_id, {"processing_engine": engine, **facets}),
            job=self._job,
            inputs=inputs,
            outputs=[self._output],
        )
        try:
            self._client.emit(event)
        except Exception as error:  # noqa: BLE001 - of any transport
            why = " ".join(str(error).split())
            print(f"txcore: the run is missing in OpenLineage: {why}", file=sys.stderr)  # noqa: T201 - it speaks


def places_of(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return namespace and name of each target and each fence table that a run judged, sorted.

    They are those of OpenLineage's naming conventions, so that they meet the events of other programs. A broker or a
    database that an earlier run read, and that the configuration names no longer, is left out.
    """
    brokers, databases, found = manifest["origin"]["brokers"], manifest["origin"]["databases"], set()
    for each in manifest["sources"]:
        if each["log"] == TARGET and each["backend"] in brokers:
            found.add((_server(brokers[each["backend"]]), each["name"]))
        elif each["log"] == FENCE and each["backend"] in databases:
            found.add(place_of_table(databases[each["backend"]], each["name"]))
    return sorted(found)


def place_of_table(url: str, table: str) -> tuple[str, str]:
    """Return namespace and name of a table; on PostgreSQL one without a schema is in `public`."""
    parsed = make_url(url)
    dialect = parsed.get_backend_name()
    if dialect not in PORTS:
        return url, table
    server = Server(parsed.host or "localhost", parsed.port or PORTS[dialect])
    if dialect == "postgresql":
        return f"postgres://{server}", f"{parsed.database}.{table if '.' in table else f'public.{table}'}"
    return f"mysql://{server}", f"{parsed.database}.{table}"


def place_of_store(uri: str) -> tuple[str, str]:
    """Return namespace and name of the store: those of its bucket, or of a folder of this machine."""
    parts = urlsplit(uri)
    if parts.scheme in {"", "file"}:
        return "file", parts.path
    scheme = "s3" if parts.scheme == "s3a" else parts.scheme
    return f"{scheme}://{parts.netloc}", parts.path.strip("/") or "/"


def _server(url: str) -> str:
    """Return a broker without its user, with its virtual host if it has one; of several servers the first."""
    parts = split_url(url)
    if parts.scheme not in PORTS:
        return url  # a file, or a third party's
    return f"{parts.scheme}://{servers_of(url, PORTS[parts.scheme])[0]}{parts.path.rstrip('/')}"
