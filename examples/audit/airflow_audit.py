"""The audit as a DAG of Airflow: one run an hour, never two at once, and an alert of yours where it finds violations.

Put it into the folder of DAGs. TXCORE_CONFIG names the file of `txcore checker`.
"""

from __future__ import annotations

import json
import os
import subprocess
from datetime import timedelta
from typing import Any

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

CONFIG = os.environ.get("TXCORE_CONFIG", "txcore.toml")


@task(retries=2, retry_delay=timedelta(minutes=5))
def audit() -> dict[str, Any]:
    """Audit what came since the last run; its summary is the task's result.

    Raises:
        AirflowFailException: violations, or the audit itself failed: another try would find the same.
        AirflowException: not everything could be read: the task is tried again.
    """
    ended = subprocess.run(
        ["txcore", "audit", "--config", CONFIG, "--json"], capture_output=True, text=True, check=False
    )
    if ended.returncode == 4:
        raise AirflowFailException(f"the audit failed: {ended.stderr.strip()}")
    run: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    if ended.returncode == 2:
        raise AirflowFailException(f"violations: {run['counts']}; the report is {run['report']}")
    if ended.returncode == 3:
        raise AirflowException(f"inconclusive: {len(run['gaps'])} gaps; the report is {run['report']}")
    return {name: run[name] for name in ("number", "records", "counts", "report", "trend")}


@dag(schedule="10 * * * *", catchup=False, max_active_runs=1, tags=["txcore"])
def txcore_audit() -> None:
    """Run the audit each hour."""
    audit()


txcore_audit()
