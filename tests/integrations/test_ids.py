"""A transaction id is a type of pydantic, and so of FastAPI."""

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel, TypeAdapter, ValidationError

from txcore import TransactionId

TEXT = "c8c9cacb-cccd-7ecf-90d1-d2d3d4d5d6d7"  # its bytes are no UTF-8
ID = TransactionId.parse(TEXT)


class Placed(BaseModel):
    transaction_id: TransactionId
    counts: dict[TransactionId, int] = {}


def test_a_model_writes_the_text_and_reads_it():
    """JSON has the text, also as a key; Python code has the id."""
    placed = Placed(transaction_id=TEXT, counts={ID: 1})
    assert ID == placed.transaction_id
    assert f'{{"transaction_id":"{TEXT}","counts":{{"{TEXT}":1}}}}' == placed.model_dump_json()
    assert placed == Placed.model_validate_json(placed.model_dump_json())
    assert {"transaction_id": ID, "counts": {ID: 1}} == placed.model_dump()


@pytest.mark.parametrize("value", ["nonsense", 5, b"short"])
def test_a_model_refuses_what_is_no_id(value):
    """A validation error has the text of the id's own error."""
    with pytest.raises(ValidationError, match="transaction id"):
        Placed(transaction_id=value)


@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_the_schema_calls_it_a_uuid(mode):
    """Clients of the API learn the format, of requests and of answers."""
    field = Placed.model_json_schema(mode=mode)["properties"]["transaction_id"]
    assert ("string", "uuid") == (field["type"], field["format"])


def test_an_undeclared_value_is_written_too():
    """Where a value is declared as Any, the text is written as well."""
    assert f'{{"id":"{TEXT}"}}'.encode() == TypeAdapter(Any).dump_json({"id": ID})
    assert {"id": ID} == TypeAdapter(Any).dump_python({"id": ID})


def test_every_kind_of_endpoint_returns_it():
    """FastAPI parses the id of a path, and returns it from endpoints of any return type; a wrong one is a 422."""
    app = FastAPI()

    @app.get("/none/{given}")
    async def none(given: TransactionId):
        return {"id": given, "born_ms": given.born_ms}

    @app.get("/any/{given}")
    async def of_any(given: TransactionId) -> dict[str, Any]:
        return {"id": given, "born_ms": given.born_ms}

    @app.get("/own/{given}")
    async def own(given: TransactionId) -> dict[str, TransactionId | int]:
        return {"id": given, "born_ms": given.born_ms}

    async def get(path):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            return await client.get(path)

    answers = [asyncio.run(get(f"/{name}/{TEXT}")).json() for name in ("none", "any", "own")]
    assert [{"id": TEXT, "born_ms": ID.born_ms}] * 3 == answers
    assert {"/none/{given}", "/any/{given}", "/own/{given}"} == set(app.openapi()["paths"])
    assert 422 == asyncio.run(get("/own/nonsense")).status_code
