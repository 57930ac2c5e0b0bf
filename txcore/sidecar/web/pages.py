"""The making of the console's pages: templates, their headers, forms, and errors."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from txcore.operator import formatting
from txcore.sidecar.web import views
from txcore.sidecar.web.desk import DeskError
from txcore.sidecar.web.guard import CONSOLE, Guard, read_body

if TYPE_CHECKING:
    from txcore.sidecar.process import Sidecar

FIELDS_MAX: Final = 20
PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    # With no-referrer a browser would not report that a form comes from here.
    "referrer-policy": "same-origin",
}
FILE_HEADERS: Final = {"cache-control": "max-age=3600"}


class Pages:
    """Renders pages. Thread safe."""

    def __init__(self, sidecar: Sidecar, guard: Guard) -> None:
        self._sidecar = sidecar
        self._guard = guard
        self._environment = Environment(
            loader=PackageLoader("txcore.sidecar.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {"iso": formatting.iso, "clock": _clock_text}
        self._always = {"version": version("txcore")}

    def show(self, request: Request, template: str, title: str, status: int = 200, **given: Any) -> Response:
        """Return a page, with the parts that all pages have."""
        group = given.get("group", "")
        shown: dict[str, Any] = {"notices": [], "is_live": False, "group": "", **self._always, **given}
        shown |= {
            "title": title,
            "now": _clock_text(self._sidecar.clock.wall_ms()),
            "session": self._guard.session(request),
            "has_token": self._guard.has_token,
            "group_path": views.path_of(group) if group else "",
            "tabs": _tabs(group, request.url.path) if group else [],
        }
        text = self._environment.get_template(template).render(shown)
        return HTMLResponse(text, status, dict(PAGE_HEADERS))

    def trouble(self, request: Request, error: DeskError) -> Response:
        """Return a page that shows an error."""
        group = request.path_params.get("group", "")
        known = group in self._sidecar.runners
        back = views.path_of(group) if known else CONSOLE
        title = "Not found" if error.status == 404 else "Not done"
        place = {"group": group} if known else {}
        return self.show(request, "error.html", title, error.status, reason=str(error), back=back, **place)


class Files(StaticFiles):
    """The static files, which the browser may cache for a while."""

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        """See `StaticFiles`."""
        answer = super().file_response(*arguments, **named)
        answer.headers.update(FILE_HEADERS)
        return answer


async def fields_of(request: Request) -> dict[str, str] | None:
    """Return the fields of a form; None when the body is not a form, or too large."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await read_body(request)
    if kind != "application/x-www-form-urlencoded" or body is None:
        return None
    try:
        found = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except (UnicodeDecodeError, ValueError):
        return None
    return {name: values[-1] for name, values in found.items()}


def _tabs(group: str, path: str) -> list[dict[str, Any]]:
    names = {"": "Overview", "pending": "Pending", "parked": "Parked", "decisions": "Decisions"}
    found = {name: views.path_of(group, *([part] if part else [])) for part, name in names.items()}
    return [{"name": name, "path": each, "is_here": quote(path, safe="/") == each} for name, each in found.items()]


def _clock_text(wall_ms: int) -> str:
    return f"{formatting.iso(wall_ms)[:19].replace('T', ' ')} UTC"
