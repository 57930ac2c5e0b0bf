"""The audit as an asset of Dagster: each run is a materialization with its numbers, and a check that blocks on violations.

Run it with `dagster dev -f dagster_audit.py`. TXCORE_CONFIG names the file of `txcore checker`.
"""

# Dagster compares the type of `context` with its own, so annotations are not postponed in this file.
import json
import os
import subprocess
from collections.abc import Iterator

from dagster import (
    AssetCheckResult,
    AssetCheckSpec,
    AssetExecutionContext,
    Definitions,
    Failure,
    MaterializeResult,
    RetryRequested,
    ScheduleDefinition,
    asset,
    define_asset_job,
)

RETRIES = 2
RETRY_S = 300
CONFIG = os.environ.get("TXCORE_CONFIG", "txcore.toml")


@asset(check_specs=[AssetCheckSpec("agrees", asset="txcore_audit", blocking=True)])
def txcore_audit(context: AssetExecutionContext) -> Iterator[MaterializeResult | AssetCheckResult]:
    """Audit what came since the last run; a run that could not read everything is tried again, and then fails."""
    ended = subprocess.run(
        ["txcore", "audit", "--config", CONFIG, "--json"], capture_output=True, text=True, check=False
    )
    if ended.returncode == 4:
        raise Failure(f"the audit failed: {ended.stderr.strip()}")
    run = json.loads(ended.stdout.splitlines()[-1])
    if ended.returncode == 3 and context.retry_number < RETRIES:
        raise RetryRequested(RETRIES, RETRY_S)
    numbers = {"run": run["number"], "records": run["records"], "report": run["report"], "counts": run["counts"]}
    yield MaterializeResult(metadata=numbers | {"gaps": len(run["gaps"]), "trend": run["trend"]})
    yield AssetCheckResult(passed=ended.returncode in {0, 1}, check_name="agrees", metadata=run["counts"])


hourly = ScheduleDefinition(job=define_asset_job("audit", [txcore_audit]), cron_schedule="10 * * * *")
definitions = Definitions(assets=[txcore_audit], schedules=[hourly])
