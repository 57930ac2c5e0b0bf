"""The rights of one user, as the block `permissions` of a NATS server's configuration.

The subject of each request to JetStream names a stream, so the rights name the group's own streams and no others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from txcore.errors import MessageRejectedError, UsageError
from txcore.permissions import Access, Role
from txcore.records import LogKind
from txcore_nats.codec import check_subject
from txcore_nats.control import plain_op_stream, stream_configs
from txcore_nats.options import EVERY, GroupNames, Options
from txcore_nats.targets import RESERVED_SUBJECTS


def permissions_of(options: Options, access: Access) -> str:
    """Return the block with the rights of one user; comments in it say what each part is for.

    Replies to the user arrive below the prefix that `inbox_prefix` in the URL gives, or else the user's name.

    Raises:
        ConfigError: the group's name cannot be used.
        UsageError: a target is no subject, or covers subjects of NATS or txcore; or the URL has another user's login,
            or one without a name and without `inbox_prefix`.
    """
    inbox = _inbox(options, access.user)
    lines = [f"# {access.role.value} of group {json.dumps(access.group)}", "permissions: {", "  publish: ["]
    for purpose, subjects in _Rights(options, access).publish():
        lines += [f"    # {purpose}", *(f"    {_quoted(subject)}" for subject in subjects)]
    lines += ["  ]", f"  subscribe: [{_quoted(f'{inbox}.>')}]", "}"]
    return "\n".join(lines)


class _Rights:
    """The subjects to which one user may publish."""

    def __init__(self, options: Options, access: Access) -> None:
        self._options = options
        self._access = access
        self._names = names = GroupNames(access.group, options)
        self._half, self._op, self._parked = (names.stream(each) for each in (LogKind.HALF, LogKind.OP, LogKind.PARKED))
        #: Without repetition: a shared stream holds ops and parked records.
        self._streams = list(dict.fromkeys((self._half, self._op, self._parked, names.bucket_stream)))
        self._ends, self._journal, *_ = names.passing_op_subjects(EVERY)
        self._is_checker = access.role is Role.CHECKER

    def publish(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the subjects in parts, each with its purpose."""
        targets = self._access.targets
        yield "targets" if targets else "targets: none is named", [_target(each) for each in targets]
        yield from self._looking_for_targets()
        yield "the group's records", self._records()
        yield "settings of its streams", self._requests(f"STREAM.INFO.{each}" for each in self._streams)
        yield self._shared("ends of transactions"), self._requests(self._look_ups())
        if self._is_checker:
            yield self._shared("reading"), self._requests(self._reading())
            yield self._shared("cleaning"), self._requests(self._cleaning())
            yield "the account's limits", self._requests(["INFO"])
        if self._access.creates:
            yield "creating the group: a stream can be made to copy any other one of the account", self._creating()

    def _requests(self, names: Iterable[str]) -> list[str]:
        return [f"{self._options.api_prefix}.{name}" for name in names]

    def _shared(self, purpose: str) -> str:
        return f"{purpose}: all of stream {self._op}, also of other groups" if self._options.is_atomic else purpose

    def _looking_for_targets(self) -> Iterator[tuple[str, Sequence[str]]]:
        streams = self._options.target_streams
        if streams:
            yield "their streams", self._requests(f"STREAM.INFO.{each}" for each in streams)
        else:
            purpose = "their streams: without stream= in the URL, settings and subjects of all streams of the account"
            yield purpose, self._requests(["STREAM.NAMES", "STREAM.INFO.*"])

    def _records(self) -> list[str]:
        names = self._names
        half = names.subject(LogKind.HALF, EVERY)
        if self._is_checker:
            return [half, names.subject(LogKind.OP, EVERY), names.subject(LogKind.PARKED, EVERY), names.key(">")]
        return [half, self._ends, self._journal]

    def _look_ups(self) -> Iterator[str]:
        yield f"STREAM.MSG.GET.{self._op}"
        yield f"DIRECT.GET.{self._op}.{self._ends}"
        if not self._options.is_atomic:
            yield f"DIRECT.GET.{self._op}"
        elif self._is_checker:
            yield f"DIRECT.GET.{self._op}.{self._names.claim_subject(EVERY)}"

    def _reading(self) -> Iterator[str]:
        yield from (f"STREAM.MSG.GET.{each}" for each in self._streams if each != self._op)
        yield from (f"CONSUMER.CREATE.{each}" for each in self._streams)
        yield from (f"CONSUMER.MSG.NEXT.{each}.*" for each in self._streams)
        yield from (f"CONSUMER.DELETE.{each}.*" for each in self._streams)

    def _cleaning(self) -> Iterator[str]:
        yield from (f"STREAM.PURGE.{each}" for each in (self._half, self._op, self._names.bucket_stream))
        yield f"STREAM.MSG.DELETE.{self._parked}"

    def _creating(self) -> list[str]:
        names, options = self._names, self._options
        made = self._requests(f"STREAM.CREATE.{each['name']}" for each in stream_configs(names, 1, options))
        if not options.is_atomic:
            return made
        beginnings = [names.marker_subject(kind, EVERY) for kind in (LogKind.OP, LogKind.PARKED)]
        return [
            *made,
            *self._requests([f"STREAM.UPDATE.{options.stream}", f"STREAM.INFO.{plain_op_stream(names)}"]),
            *(() if self._is_checker else beginnings),
        ]


def _inbox(options: Options, user: str) -> str:
    """Return the prefix of the user's replies, which a backend with this URL uses."""
    if options.user not in {"", user}:
        text = f"the URL has the login of {options.user!r}, and the rights are for {user!r}"
        raise UsageError(f"{text}: name the user, or leave the login out of the URL")
    if not options.inbox_prefix and (options.token or options.creds or options.nkey_seed):
        raise UsageError("a login by token, creds or nkey_seed has no user's name: the URL needs inbox_prefix")
    return replace(options, user=user).inbox


def _target(subject: str) -> str:
    """Return *subject*, which may have wildcards after its first token.

    Raises:
        UsageError: it is none, or covers subjects of NATS or txcore.
    """
    first, *others = subject.split(".")
    plain = [
        first,
        *("any" if each == "*" or (each == ">" and not others[at + 1 :]) else each for at, each in enumerate(others)),
    ]
    try:
        check_subject(".".join(plain), RESERVED_SUBJECTS)
    except MessageRejectedError as error:
        raise UsageError(f"no right for the target {subject!r}: {error}") from error
    return subject


def _quoted(subject: str) -> str:
    return json.dumps(subject, ensure_ascii=False)
