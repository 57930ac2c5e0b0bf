"""The result of a run as metrics, in a file that Prometheus's node exporter reads (its textfile collector).

Source: Prometheus documentation, "Node exporter", textfile collector: a file is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from txcore.audit.verdicts import FAILED, SEVERITIES
from txcore.errors import ConfigError

METRICS: Final[Mapping[str, str]] = {
    "txcore_audit_exit_code": "Exit code of the last run: 0 pass, 1 warnings, 2 violations, 3 inconclusive, 4 failed",
    "txcore_audit_ended_seconds": "Time at which the last run ended, in seconds since 1970",
    "txcore_audit_findings": "Findings of the last run, by verdict and severity",
    "txcore_audit_gaps": "What the last run was to read and could not",
    "txcore_audit_records": "Records that the last run read",
    "txcore_audit_judged_to_seconds": "Time up to which the last run judged, in seconds since 1970",
}


def write_metrics(path: str, manifest: Mapping[str, Any] | None, ended_ms: int) -> None:
    """Replace the file at *path* with the metrics of a run; without a manifest, of one that failed.

    Raises:
        ConfigError: the file cannot be written.
    """
    registry = CollectorRegistry()

    def gauge(name: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(name, METRICS[name], labels, registry=registry)

    gauge("txcore_audit_exit_code").set(FAILED if manifest is None else manifest["exit_code"])
    gauge("txcore_audit_ended_seconds").set(ended_ms / 1000)
    if manifest is not None:
        gauge("txcore_audit_gaps").set(len(manifest["gaps"]))
        gauge("txcore_audit_records").set(manifest["records"])
        gauge("txcore_audit_judged_to_seconds").set(manifest["now_ms"] / 1000)
        findings = gauge("txcore_audit_findings", ("verdict", "severity"))
        for verdict, own in SEVERITIES.items():
            severity = manifest["severities"].get(verdict.name, own.name.lower())
            findings.labels(verdict.name, severity).set(manifest["counts"].get(verdict.name, 0))
    try:
        write_to_textfile(path, registry)
    except OSError as error:
        raise ConfigError(f"audit.textfile={path!r} cannot be written: {error.strerror}") from error
