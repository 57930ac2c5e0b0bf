"""The JSON API's routes of one transaction: its journey, and its changes. A change is a POST of JSON with the token."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta, Struct
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from txcore.ids import id_text
from txcore.operator import to_json
from txcore.operator.plan import Verb, fence_text
from txcore.sidecar.web.desk import Case, Decision, Desk, DeskError
from txcore.sidecar.web.guard import BODY_BYTES_MAX, Guard, read_body, refused
from txcore.sidecar.web.sessions import NAME_MAX, name_of

if TYPE_CHECKING:
    from txcore.clock import Clock

PATH: Final = "/api/v1/groups/{group}/transactions/{id}"


class Change(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The body of a POST; `docs/api-openapi.json` describes it."""

    by: Annotated[str, Meta(max_length=NAME_MAX)]
    reason: Annotated[str, Meta(min_length=1, max_length=500)]
    confirm: Annotated[str, Meta(max_length=100)]
    override_fence: bool = False
    mark: Annotated[str, Meta(max_length=200)] = ""


def change_routes(desk: Desk, guard: Guard, clock: Clock) -> list[Route]:
    """Return `/api/v1/groups/{group}/transactions/{id}`, and `/resume`, `/commit` and `/rollback` below it."""

    def show(request: Request) -> Response:
        try:
            case = desk.case(request.path_params["group"], request.path_params["id"])
        except DeskError as error:
            return refused(error.status, str(error))
        return JSONResponse(_as_json(case, clock.wall_ms()))

    def changing(verb: Verb) -> Callable[[Request], object]:
        async def change(request: Request) -> Response:
            refusal = guard.refusal_to_change(request)
            if refusal is not None:
                return refusal
            body = await read_body(request)
            if body is None:
                return refused(413, f"the body has more than {BODY_BYTES_MAX} bytes")
            try:
                asked = msgspec.json.decode(body, type=Change)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                return refused(400, f"the body: {error}")
            by = name_of(asked.by)
            if not by:
                return refused(400, "the body: name the operator in `by`")
            decision = Decision(
                verb, f"{by} (api)", asked.reason, asked.confirm, override=asked.override_fence, mark=asked.mark
            )
            try:
                text = await run_in_threadpool(
                    desk.decide, request.path_params["group"], request.path_params["id"], decision
                )
            except DeskError as error:
                return refused(error.status, str(error))
            return JSONResponse({"text": text}, 202)

        return change

    return [
        Route(PATH, show),
        *(Route(f"{PATH}/{verb.value}", changing(verb), methods=["POST"]) for verb in Verb),
    ]


def _as_json(case: Case, now_ms: int) -> dict[str, object]:
    journey, asked = case.journey, case.asked
    plans = {verb.value: case.plan(verb) for verb in Verb}
    shown = to_json.journey(journey, now_ms, bodies=False)
    for each in shown["parked"]:
        each.pop("poison")  # bytes of unknown origin may contain a body
    return shown | {
        "transaction_id": id_text(journey.transaction_id),
        "fence": to_json.fence(asked.reading),
        "fence_row": to_json.fence_row(asked.row),
        "fence_text": fence_text(journey, asked.reading),
        "mark": case.mark,
        "plans": {name: {"step": each.step.value, "text": each.text} for name, each in plans.items()},
    }
