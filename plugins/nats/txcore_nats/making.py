"""Making the stream of a target that is in none, for `txcore topics create` and the demo's consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from nats.aio.client import Client

from txcore.errors import ConfigError
from txcore_nats.codec import STREAM_EXISTS, ApiError, as_json, from_json, translate
from txcore_nats.connection import close_client, require_connected
from txcore_nats.login import login
from txcore_nats.options import GroupNames, Options

Ask = Callable[[str, Any], Awaitable[dict[str, Any]]]
"""A request to JetStream's API: its name and its arguments."""
ATTEMPTS: Final = 2
"""Another process may make a stream with this subject between the question and the request."""


def make_subject(options: Options, subject: str) -> None:
    """Make a stream for a subject that is in none, with a file as its storage; see `BackendPlugin.target`.

    Raises:
        ConfigError: no stream can be made, or the URL names the stream of all targets, which lacks this subject.
        BackendUnavailableError: the server cannot be reached, or refuses the login.
    """
    asyncio.run(_made(options, subject))


async def _made(options: Options, subject: str) -> None:
    client = Client()
    try:
        await client.connect(
            servers=list(options.servers),
            name="txcore",
            error_cb=_ignore,  # `connect` raises it
            allow_reconnect=False,
            connect_timeout=options.connect_timeout_s,  # type: ignore[arg-type] # passed on to wait_for
            **login(options),
        )
        require_connected(client)
        await stream_of(_asking(client, options), options, subject)
    except Exception as error:
        raise translate(error, f"making a stream for {subject!r}") from error
    finally:
        await close_client(client)


def _asking(client: Client, options: Options) -> Ask:
    async def ask(name: str, request: Any) -> dict[str, Any]:
        payload = b"" if request is None else as_json(request)
        message = await client.request(f"{options.api_prefix}.{name}", payload, timeout=options.control_timeout_s)
        answer = from_json(message.data)
        refusal = answer.get("error")
        if refusal:
            raise ApiError(refusal.get("code", 0), refusal.get("err_code", 0), refusal.get("description", ""))
        return answer

    return ask


async def _ignore(_error: Exception) -> None: ...


async def stream_of(ask: Ask, options: Options, subject: str) -> str:
    """Return the name of the stream that has *subject*; make one if there is none.

    Raises:
        ConfigError: no stream can be made.
        ApiError: JetStream refuses.
    """
    for _ in range(ATTEMPTS):
        names = (await ask("STREAM.NAMES", {"subject": subject})).get("streams") or ()
        if names:
            return str(names[0])
        if options.target_streams:
            name = options.target_streams[0]
            config = (await ask(f"STREAM.INFO.{name}", None))["config"]
            config["subjects"] = sorted({*config["subjects"], subject})
            await ask(f"STREAM.UPDATE.{name}", config)
        else:
            name = GroupNames(subject, Options()).token.replace("=2E", "-")
            await make_stream(ask, {"name": name, "subjects": [subject]})
    raise ConfigError(f"no stream can be made for {subject!r}", key="topic")


async def make_stream(ask: Ask, config: dict[str, Any]) -> None:
    """Make a stream in a file, without a limit, unless there is one of this name.

    Raises:
        ApiError: JetStream refuses.
    """
    try:
        await ask(f"STREAM.CREATE.{config['name']}", {"storage": "file", "retention": "limits"} | config)
    except ApiError as error:
        if error.err_code != STREAM_EXISTS:
            raise
