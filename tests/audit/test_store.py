"""The store's place: a directory, or the URI of a file system that both Spark and Arrow know."""

from __future__ import annotations

import pytest
from txcore_spark.store import Store

from txcore.errors import UsageError


def test_store_on_s3_keeps_the_name_that_spark_has_for_it(monkeypatch):
    """Spark knows S3 as `s3a`, Arrow as `s3`; with the endpoint in the environment no request is sent yet."""
    for name, value in (("ENDPOINT_URL", "http://127.0.0.1:1"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    store = Store("s3a://audit/txcore/")
    assert ("s3a://audit/txcore", "s3", None) == (store.uri, store._files.type_name, store.folder)
    assert "s3a://audit/txcore/tables/runs" == store.table("runs")


def test_store_with_an_unknown_scheme_is_refused_in_a_sentence():
    """The sentence names the URI."""
    with pytest.raises(UsageError, match="the store 'tape://x/y' cannot be opened: Unrecognized filesystem type"):
        Store("tape://x/y")
