"""Reading NATS JetStream with nats-py: pull consumers by stream sequence, until the server reports that none is left.

A consumer counts its deliveries, and each delivery names how many messages of its filter are left. So the reader
notices a message that was lost on the way and an end that came too early. The files of TLS and credentials in the URL
are used as by the backend itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, ReplayPolicy
from nats.js.errors import NotFoundError
from txcore_nats.codec import as_json, decode_headers, from_json, translate
from txcore_nats.login import login
from txcore_nats.markers import is_end_marker
from txcore_nats.options import NAME_PREFIX, SHARED_PREFIX, GroupNames, Options, parse_url

from txcore.errors import ConfigError, TxcoreError
from txcore.records import LogKind
from txcore.wire import HEADER_KEY
from txcore_spark.plan import TARGET, Edge, Range, ShortReadError, Source, flushed

FETCH_COUNT: Final = 1_000
INACTIVE_S: Final = 300.0
CLOSE_S: Final = 2.0
T = TypeVar("T")


class _Stream(NamedTuple):
    """State of a stream as its server reports it."""

    subjects: list[str]
    first: int
    last: int
    first_ms: int
    created: str


class NatsBroker:
    """The driver's view of a server. Implements `Broker`."""

    def __init__(self, options: Options, timeout_s: float) -> None:
        self._options = options
        self._timeout_s = timeout_s
        self._loop = asyncio.new_event_loop()
        self._client = Client()
        try:
            self._run(self._client.connect(**_connecting(options, timeout_s)), "connecting")
        except TxcoreError:
            self.close()
            raise

    def topics(self) -> Sequence[str]:
        """See `Broker.topics`: the subjects in use in the streams of the application."""
        found: set[str] = set()
        for name in self._names():
            if not name.startswith(("KV_", "OBJ_", f"{NAME_PREFIX}_")):
                info = self._request(f"STREAM.INFO.{name}", {"subjects_filter": ">"})
                found |= set(info["state"].get("subjects") or {})
        return sorted(each for each in found if not each.startswith((f"{NAME_PREFIX}.", f"{SHARED_PREFIX}.", "$")))

    def edges(self, source: Source) -> Sequence[Edge]:
        """See `Broker.edges`."""
        if source.log == TARGET:
            stream = self._stream(self._stream_of(source.name))
            return [Edge(0, stream.first, stream.last + 1, stream.first > 1, None, stream.first_ms)]
        names = GroupNames(source.name, self._options)
        partitions = len(self._stream(names.stream(LogKind.HALF)).subjects)
        stream = self._stream(names.stream(LogKind(source.log)))
        # Decided records are purged after `keep_s`, partition by partition: within that time nothing is missing.
        kept_ms = stream.last and self._now_ms() - round(self._options.keep_s * 1000)
        return [Edge(n, stream.first, stream.last + 1, stream.first > 1, None, kept_ms) for n in range(partitions)]

    def split(self, wanted: Range, records_max: int) -> Sequence[Range]:  # noqa: ARG002 - one task per partition
        """See `Broker.split`: more readers than partitions read no faster.

        The expected number is a lower bound: messages from the end on are counted later, and subtracted.
        """
        stream, subject = self._filter_of(wanted)
        from_start = self._pending(stream, subject, wanted.start)
        return [replace(wanted, expected=max(from_start - self._pending(stream, subject, wanted.end), 0))]

    def seal(self, source: Source, partition: int, end: int) -> str:  # noqa: ARG002 - one time for a whole stream
        """See `Broker.seal`: the time at which the stream was made."""
        is_target = source.log == TARGET
        names = GroupNames(source.name, self._options)
        return self._stream(self._stream_of(source.name) if is_target else names.stream(LogKind(source.log))).created

    def _filter_of(self, wanted: Range) -> tuple[str, str]:
        source = wanted.source
        if source.log == TARGET:
            return self._stream_of(source.name), source.name
        names, kind = GroupNames(source.name, self._options), LogKind(source.log)
        return names.stream(kind), names.subject(kind, wanted.place.partition)

    def _pending(self, stream: str, subject: str, start: int) -> int:
        """Return how many messages of a filter are at *start* and after it."""
        config = {
            "deliver_policy": "by_start_sequence", "opt_start_seq": max(start, 1), "ack_policy": "none",
            "filter_subject": subject, "mem_storage": True, "num_replicas": 1, "inactive_threshold": 5_000_000_000,
        }  # fmt: skip
        made = self._request(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        self._request(f"CONSUMER.DELETE.{stream}.{made['name']}", None)
        return int(made["num_pending"])

    def close(self) -> None:
        """See `Broker.close`."""
        end(self._loop, self._client)

    def _now_ms(self) -> int:
        answer = self._request("INFO", None)
        del answer  # only to be sure that the server answers
        return round(datetime.now().astimezone().timestamp() * 1000)

    def _names(self) -> list[str]:
        found: list[str] = []
        while True:
            answer = self._request("STREAM.NAMES", {"offset": len(found)})
            page = answer.get("streams") or []
            found += page
            if not page or len(found) >= answer.get("total", 0):
                return found

    def _stream_of(self, subject: str) -> str:
        names = self._request("STREAM.NAMES", {"subject": subject}).get("streams") or []
        if not names:
            raise ConfigError(f"no stream holds subject {subject!r}", key="topics")
        return str(names[0])

    def _stream(self, name: str) -> _Stream:
        info = self._request(f"STREAM.INFO.{name}", None)
        state = info["state"]
        first_ms = round(_moment(state.get("first_ts", "")) * 1000)
        return _Stream(
            info["config"].get("subjects") or [], state["first_seq"], state["last_seq"], first_ms, info["created"]
        )

    def _request(self, name: str, request: Any) -> dict[str, Any]:
        payload = b"" if request is None else as_json(request)
        asking = self._client.request(f"{self._options.api_prefix}.{name}", payload, timeout=self._timeout_s)
        answer = from_json(self._run(asking, f"asking JetStream for {name}").data)
        if answer.get("error"):
            raise ConfigError(f"JetStream answers {answer['error'].get('description')!r} to {name}", key="stream")
        return answer

    def _run(self, coroutine: Coroutine[Any, Any, T], doing: str) -> T:
        try:
            return self._loop.run_until_complete(coroutine)
        except Exception as error:
            raise translate(error, doing) from error


def open_broker(url: str, timeout_s: float) -> NatsBroker:
    """See `Reader.open_broker`."""
    return NatsBroker(parse_url(url), timeout_s)


def read(url: str, wanted: Range) -> Iterator[pa.RecordBatch]:
    """See `Reader.read`."""
    options, rows, count = parse_url(url), wanted.rows(), 0
    source = wanted.source
    add = {"half": rows.add_half, "op": rows.add_ops, "parked": rows.add_parked}.get(source.log)
    loop = asyncio.new_event_loop()
    pulling = _Pulling(options, wanted)
    try:
        loop.run_until_complete(pulling.open())
        while batch := loop.run_until_complete(pulling.next()):
            count += len(batch)
            for sequence, appended_ms, message in batch:
                if add is not None:
                    if not is_end_marker(message.headers):
                        add(sequence, message.data, appended_ms)
                else:
                    headers = {
                        name: value
                        for name, value in decode_headers(message.headers).items()
                        if not name.lower().startswith("nats-")
                    }
                    key = headers.get(HEADER_KEY)
                    own_key = key.encode() if isinstance(key, str) else key
                    rows.add_target(sequence, source.topic, own_key, message.data, headers, appended_ms)
            yield from flushed(rows)
    except ShortReadError:
        raise
    except Exception as error:
        raise translate(error, f"reading {source.name!r}") from error
    finally:
        end(loop, pulling.client)
    if wanted.expected is not None and count < wanted.expected:
        raise ShortReadError(f"{count} messages of at least {wanted.expected} that were there when it was planned")
    rows.add_cover(wanted.start, wanted.end, count)
    yield rows.take()


class _Pulling:
    """One pull consumer over one range of one stream."""

    def __init__(self, options: Options, wanted: Range) -> None:
        self._options = options
        self._wanted = wanted
        self.client = Client()
        self._subscription: Any = None
        self._left = 0  #: messages of the filter that the server still has after the last delivery
        self._delivered = 0
        self._is_over = False

    async def open(self) -> None:
        """Connect and create the consumer; the server reports how many messages await it."""
        await self.client.connect(**_connecting(self._options, self._wanted.timeout_s))
        stream, subject = await self._place()
        prefix = self._options.api_prefix if self._options.domain else "$JS.API"
        context = self.client.jetstream(prefix=prefix, timeout=self._wanted.timeout_s)
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=max(self._wanted.start, 1),
            ack_policy=AckPolicy.NONE,
            replay_policy=ReplayPolicy.INSTANT,
            filter_subject=subject,
            inactive_threshold=INACTIVE_S,
            mem_storage=True,
            num_replicas=1,
        )
        self._subscription = await context.pull_subscribe(subject, stream=stream, config=config)
        self._left = (await self._subscription.consumer_info()).num_pending or 0

    async def next(self) -> list[tuple[int, int, Any]]:
        """Return the next messages; an empty list after the range was read whole.

        Raises:
            ShortReadError: the server has more messages, but none arrived in time, or one was lost on the way.
        """
        if self._is_over or not self._left:
            return []
        try:
            found = await self._subscription.fetch(min(FETCH_COUNT, self._left), timeout=self._wanted.timeout_s)
        except TimeoutError as error:
            raise ShortReadError(f"{self._left} messages are left, but none came in time") from error
        batch = []
        for message in found:
            metadata = message.metadata
            self._delivered += 1
            if metadata.sequence.consumer != self._delivered:
                raise ShortReadError(
                    f"delivery {metadata.sequence.consumer} came as number {self._delivered}: one was lost on the way"
                )
            self._left = metadata.num_pending
            if metadata.sequence.stream >= self._wanted.end:
                self._is_over = True
                break
            batch.append((metadata.sequence.stream, round(metadata.timestamp.timestamp() * 1000), message))
            self._is_over = metadata.sequence.stream == self._wanted.end - 1
        if not batch and not self._is_over:
            raise ShortReadError(f"{self._left} messages are left, but none came")
        return batch

    async def _place(self) -> tuple[str, str]:
        """Return the stream and the filter of the range."""
        source = self._wanted.source
        if source.log != TARGET:
            names = GroupNames(source.name, self._options)
            kind = LogKind(source.log)
            return names.stream(kind), names.subject(kind, self._wanted.place.partition)
        answer = await self.client.request(
            f"{self._options.api_prefix}.STREAM.NAMES",
            as_json({"subject": source.name}),
            timeout=self._wanted.timeout_s,
        )
        streams = from_json(answer.data).get("streams") or []
        if not streams:
            raise NotFoundError(description=f"no stream holds {source.name}")
        return str(streams[0]), source.name


def end(loop: asyncio.AbstractEventLoop, client: Client) -> None:
    """Disconnect if the server still answers, and end the loop with every task on it."""

    async def run() -> None:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(client.close(), CLOSE_S)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        # Transports are closed by the loop's next round.
        await asyncio.get_running_loop().run_in_executor(None, int)

    loop.run_until_complete(run())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def _connecting(options: Options, timeout_s: float) -> dict[str, Any]:
    """Return the client's arguments; connecting may take as long as a stream may be silent."""
    return {
        "servers": list(options.servers),
        "name": "txcore audit",
        "connect_timeout": max(options.connect_timeout_s, timeout_s),
        "max_reconnect_attempts": 1,
        "allow_reconnect": False,
        **login(options),
    }


def _moment(text: str) -> float:
    """Return the seconds of a time that the server wrote with nanoseconds."""
    if not text or text.startswith("0001"):
        return 0.0
    head, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{head}.{fraction[:6] or '0'}+00:00").timestamp()
