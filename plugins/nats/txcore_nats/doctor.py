"""`txcore doctor` on NATS JetStream: server, account, the group's streams, targets, and the monitoring port.

Source: NATS documentation of streams (`discard`, `max_age`, `duplicate_window`, `persist_mode`), of `sync_interval` and
of the monitoring endpoint /jsz; release notes of 2.10.20 to 2.10.23; Jepsen's report on 2.12.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version as installed_version
from typing import Final

from txcore.backends.exposure import anonymous_finding, encryption_finding
from txcore.findings import (
    Check,
    Examination,
    Finding,
    Request,
    UntoldError,
    counted,
    duration,
    fail,
    for_production,
    ok,
    shortened,
    size,
    version_of,
    warn,
)
from txcore.records import RECORD_OVERHEAD_MAX, LogKind
from txcore_nats.codec import OWN_HEADERS_BYTES_MAX, ApiError
from txcore_nats.doctor_access import NANOSECONDS, NatsSubject, StreamView
from txcore_nats.options import Options

VERSION_OLDEST: Final = "2.9"
VERSION_KEPT: Final = "2.12.15"
BAD_VERSIONS: Final = frozenset({"2.10.20", "2.10.21", "2.10.22"})
"""Versions that lost whole streams when they were killed."""
CLIENT_OLDEST: Final = "2.10"
REPLICAS_WANTED: Final = 3
SYNC_MAX_S: Final = 1.0
FULL_SHARE: Final = 0.8
LAG_MAX: Final = 1_000
ATOMIC_LEVEL: Final = 2
"""Lowest level of JetStream's API with atomic batches (2.12)."""


def nats_examination(options: Options, request: Request) -> Examination[NatsSubject]:
    """Connect and return the checks.

    Raises:
        BackendUnavailableError: the server cannot be reached, or refuses the credentials.
        ConfigError: the group's name is not valid, or a file of the credentials cannot be used.
    """
    subject = NatsSubject(options, request)
    subject.connect()
    return Examination(CHECKS, subject, subject.close)


# -- client, server, account ----------------------------------------------------------------------------------------


def _client(_subject: NatsSubject) -> Finding:
    found = installed_version("nats-py")
    if version_of(found) < version_of(CLIENT_OLDEST):
        return fail(f"nats-py {found} is older than {CLIENT_OLDEST}", f'pip install "nats-py>={CLIENT_OLDEST}"')
    return ok(f"nats-py {found}")


def _version(subject: NatsSubject) -> Finding:
    found = subject.server_version
    if version_of(found) < version_of(VERSION_OLDEST):
        return fail(f"NATS {found} is older than {VERSION_OLDEST}", f"upgrade to {VERSION_KEPT} or later")
    if found in BAD_VERSIONS:
        return fail(f"NATS {found} loses whole streams when it is killed", f"upgrade to {VERSION_KEPT} or later")
    if version_of(found) < version_of(VERSION_KEPT):
        text = f"NATS {found} is older than {VERSION_KEPT}: losses that were found since then are not mended in it"
        return warn(text, f"upgrade to {VERSION_KEPT} or later")
    return ok(f"NATS {found}")


def _encryption(subject: NatsSubject) -> Finding:
    options = subject.options
    secret = " and the password" if options.user or options.token else ""
    return encryption_finding(
        subject.hosts,
        is_encrypted=subject.is_encrypted,
        is_verified=options.tls_verify,
        sent=f"messages{secret}",
        change="tls {…} in each server's config; tls=true and tls_ca=FILE in the URL",
    )


def _anonymous(subject: NatsSubject) -> Finding:
    login = "clients without credentials" if subject.accepts_anonymous() else ""
    change = "authorization {…} or accounts {…} without no_auth_user in each server's config"
    return anonymous_finding(subject.hosts, login, change)


def _rights(subject: NatsSubject) -> Finding:
    rights = subject.foreign_rights()
    if not rights:
        return ok("this user has no rights in other groups")
    change = "permissions {…} of the user in each server's config, as `txcore permissions` prints them"
    return for_production(warn(f"this user may {', '.join(rights)} what is another group's", change))


def _jetstream(subject: NatsSubject) -> Finding:
    try:
        account = subject.account
    except ApiError as error:
        return fail(
            f"JetStream does not serve this account: {error}",
            "jetstream {} in the server's config, and enabled for the account",
        )
    except UntoldError as error:
        return fail(f"JetStream does not answer: {error}", "jetstream {} in the server's config; " + error.change)
    return ok(f"JetStream answers, API level {_level(subject)}, {counted(account.get('streams', 0), 'stream')}")


def _limits(subject: NatsSubject) -> Finding:
    limits, used = subject.account.get("limits", {}), int(subject.account.get("storage", 0))
    storage = int(limits.get("max_storage", -1))
    if limits.get("max_bytes_required"):
        text = "the account demands a size for each stream (max_bytes_required), and only the half stream has one"
        return fail(text, "max_bytes_required: false for the account")
    if 0 < storage * FULL_SHARE < used:
        text = f"{size(used)} of the account's {size(storage)} are used: at the limit halves and ops are refused"
        return warn(text, "nsc edit account --js-disk-storage, or max_store for the account in the server's config")
    return ok(f"{size(used)} are used, of {'no limit' if storage < 0 else size(storage)}")


def _payload(subject: NatsSubject) -> Finding:
    wanted = max(subject.options.body_size_max, subject.request.body_size) + RECORD_OVERHEAD_MAX + OWN_HEADERS_BYTES_MAX
    if subject.payload_max < wanted:
        text = f"max_payload is {size(subject.payload_max)}, less than a half of {size(wanted)} with its headers"
        return fail(text, f"max_payload: {wanted} in the server's config, or a smaller body_size_max in the URL")
    return ok(f"max_payload is {size(subject.payload_max)}; halves need {size(wanted)}")


def _sync_interval(subject: NatsSubject) -> Finding:
    config = subject.monitored("jsz").get("config") or {}
    if config.get("sync_always"):
        return ok("each message is synced before it is acknowledged (sync_interval: always)")
    if "sync_interval" not in config:
        text = f"NATS {subject.server_version} syncs every 2 minutes: a power failure loses records acknowledged since"
        return fail(text, "upgrade to 2.10 or later, then sync_interval: always under jetstream")
    interval_s = int(config["sync_interval"]) / NANOSECONDS
    text = f"sync_interval is {duration(interval_s)}: a power failure loses records acknowledged since the last sync"
    judge = fail if interval_s > SYNC_MAX_S else warn
    return for_production(judge(text, "sync_interval: always under jetstream in each server's config"))


def _atomic(subject: NatsSubject) -> Finding:
    if not subject.options.is_atomic:
        return ok("no atomic batches are used (release=plain)")
    level = _level(subject)
    if level < ATOMIC_LEVEL:
        text = f"the API has level {level}; atomic batches need {ATOMIC_LEVEL} (2.12)"
        return fail(text, f"upgrade to {VERSION_KEPT} or later, or release=plain in the URL")
    view = subject.stream(subject.options.stream)
    if view is None:
        return fail(
            f"there is no stream {subject.options.stream!r}", "make it, with the targets' subjects and allow_atomic"
        )
    if not view.config.get("allow_atomic"):
        return fail(f"stream {view.name} takes no atomic batches", f"nats stream edit {view.name} --allow-batch")
    return ok(f"stream {view.name} takes atomic batches")


# -- the group's streams ------------------------------------------------------------------------------------------


def _streams(subject: NatsSubject) -> Finding:
    if not subject.present_streams:
        return fail(
            f"group {subject.request.group!r} has no streams",
            f"txcore topics create --broker URL --group {subject.request.group}",
        )
    missing = [name for name, view in subject.own_streams.items() if view is None]
    if missing:
        return fail(f"streams are missing: {shortened(missing)}; what they held is lost", "another group name")
    return ok(f"{len(subject.present_streams)} streams are there")


def _storage(subject: NatsSubject) -> Finding:
    text = "storage is {value} on {names}: a restart loses everything"
    return _where(subject.present_streams, "storage", "file", text, None) or ok("all are stored in files")


def _replicas(subject: NatsSubject) -> Finding:
    return _few_replicas(subject.present_streams) or ok(f"{REPLICAS_WANTED} or more replicas of each stream")


def _in_sync(subject: NatsSubject) -> Finding:
    for view in subject.present_streams:
        replicas = view.cluster.get("replicas") or ()
        if view.replica_count > 1 and not view.cluster.get("leader"):
            return fail(f"{view.name} has no leader: nothing can be written", "start the servers that are down")
        lagging = [each["name"] for each in replicas if each.get("offline") or not each.get("current")]
        lagging += [each["name"] for each in replicas if each.get("lag", 0) > LAG_MAX and each["name"] not in lagging]
        if lagging:
            text = f"{view.name} is not current on {shortened(lagging)}"
            return warn(text, "start the server, or see its log: nats server report jetstream")
    return ok("all replicas are current")


def _discard(subject: NatsSubject) -> Finding:
    text = "discard is {value} on {names}: when full, the oldest pending records are dropped"
    return _where(subject.present_streams, "discard", "new", text, "--discard=new") or ok("full streams refuse")


def _max_age(subject: NatsSubject) -> Finding:
    wanted_s = subject.request.retention_s
    short = [view for view in subject.present_streams if view.age_max_s < wanted_s]
    if short:
        text = (
            f"max_age is {duration(short[0].age_max_s)} on {_names(short)}, less than twice the check horizon of "
            f"{duration(subject.request.horizon_s)}: a pending half is dropped"
        )
        return fail(text, f"nats stream edit {short[0].name} --max-age=0" + _for_each(short))
    return ok("no stream drops pending records for their age")


def _room(subject: NatsSubject) -> Finding:
    for view in subject.present_streams:
        bound, used = int(view.config.get("max_bytes", -1)), int(view.state.get("bytes", 0))
        if 0 < bound * FULL_SHARE < used:
            what = "halves" if view.name == subject.names.stream(LogKind.HALF) else "records"
            text = f"{view.name} holds {size(used)} of {size(bound)}: at its bound new {what} are refused"
            return warn(text, f"a checker that runs; or nats stream edit {view.name} --max-bytes={2 * bound}")
    return ok("no stream is near its bound")


def _persist_mode(subject: NatsSubject) -> Finding:
    wrong = [view for view in subject.present_streams if view.config.get("persist_mode") == "async"]
    if wrong:
        text = f"persist_mode is async on {_names(wrong)}: acknowledged records are not stored yet"
        return fail(text, "streams without persist_mode: it cannot be changed; another group name")
    return ok("acknowledged records are stored")


def _flags(subject: NatsSubject) -> Finding:
    wrong = [(view, flag) for view in subject.present_streams for flag in ("sealed", "no_ack") if view.config.get(flag)]
    if wrong:
        view, flag = wrong[0]
        return fail(f"{view.name} is {flag}: no record is taken, or none acknowledged", "another group name")
    kept = [view for view in subject.present_streams if view.config.get("deny_purge") or view.config.get("deny_delete")]
    if kept:
        text = f"{_names(kept)} deny purging or deleting: decided records stay until the streams are full"
        return warn(text, "another group name: these flags stay for ever")
    return ok("none is sealed, unacknowledged, or closed to purging")


# -- targets ----------------------------------------------------------------------------------------------------------


def _targets(subject: NatsSubject) -> Finding:
    missing = [name for name, view in subject.target_streams.items() if view is None]
    if missing:
        change = f"nats stream add NAME --subjects={missing[0]} --storage=file --replicas=3 --discard=new"
        return fail(f"in no stream: {shortened(missing)}", change)
    return ok(f"in streams: {counted(len(subject.target_streams), 'target')}")


def _target_streams(subject: NatsSubject) -> Finding:
    views = list({view.name: view for view in subject.target_streams.values() if view is not None}.values())
    wanted_s = subject.options.duplicate_window_s
    forgetful = [view for view in views if view.config.get("duplicate_window", 0) / NANOSECONDS < wanted_s]
    lossy = [view for view in views if view.config.get("no_ack") or view.config.get("persist_mode") == "async"]
    body = subject.request.body_size
    small = [view for view in views if 0 < view.config.get("max_msg_size", -1) < body + OWN_HEADERS_BYTES_MAX]
    if lossy:
        text = f"{_names(lossy)} acknowledges nothing, or messages not stored yet: messages for it are refused"
        return fail(text, "a stream with acknowledgements and without persist_mode")
    if forgetful:
        text = (
            f"duplicate_window of {_names(forgetful)} is shorter than {duration(wanted_s)}: messages for it are refused"
        )
        change = f"nats stream edit {forgetful[0].name} --dupe-window={wanted_s:g}s, or a smaller duplicate_window_s"
        return fail(text, change + " in the URL")
    if small:
        text = (
            f"max_msg_size is {size(small[0].config['max_msg_size'])} on {_names(small)}: larger messages are refused"
        )
        return fail(text, f"nats stream edit {small[0].name} --max-msg-size={body + OWN_HEADERS_BYTES_MAX}")
    memory = _where(views, "storage", "file", "storage is {value} on {names}: a restart loses messages", None)
    return memory or _few_replicas(views) or _drops_old(views) or ok(f"durable: {counted(len(views), 'target stream')}")


def _drops_old(views: Sequence[StreamView]) -> Finding | None:
    bounded = [
        view
        for view in views
        if view.config.get("discard", "old") == "old"
        and any(int(view.config.get(bound, -1)) > 0 for bound in ("max_bytes", "max_msgs"))
    ]
    if not bounded:
        return None
    text = f"{_names(bounded)} is bounded with discard old: when full, messages go that no consumer has seen"
    return warn(text, f"nats stream edit {bounded[0].name} --discard=new")


# -- shared by several checks -----------------------------------------------------------------------------------------


def _few_replicas(views: Sequence[StreamView]) -> Finding | None:
    few = [view for view in views if view.replica_count < REPLICAS_WANTED]
    if not few:
        return None
    text = f"{counted(few[0].replica_count, 'replica')} of {_names(few)}: acknowledged records go with a server's disk"
    change = f"nats stream edit {few[0].name} --replicas=3" + _for_each(few) + "; replicas=3 in the URL"
    return for_production(fail(text, change))


def _where(views: Iterable[StreamView], setting: str, right: str, text: str, option: str | None) -> Finding | None:
    wrong = [view for view in views if view.config.get(setting, right) != right]
    if not wrong:
        return None
    change = (
        f"nats stream edit {wrong[0].name} {option}{_for_each(wrong)}"
        if option
        else "another stream or group name: it cannot be changed"
    )
    return fail(text.format(value=wrong[0].config[setting], names=_names(wrong)), change)


def _level(subject: NatsSubject) -> int:
    return int((subject.account.get("api") or {}).get("level", 0))


def _names(views: Sequence[StreamView]) -> str:
    return shortened([view.name for view in views])


def _for_each(views: Sequence[StreamView]) -> str:
    return " (for each)" if views[1:] else ""


CHECKS: Final = (
    Check("nats.client", "nats-py is a version that was tried", _client),
    Check("nats.version", "the server has no known losses", _version),
    Check("nats.encryption", "nothing is sent unprotected to another machine", _encryption),
    Check("nats.anonymous", "no client without credentials is accepted", _anonymous),
    Check("nats.rights", "this user has no rights in other groups", _rights),
    Check("nats.jetstream", "JetStream serves this account", _jetstream),
    Check("nats.limits", "the account has room", _limits, needs="nats.jetstream"),
    Check("nats.payload", "the largest half fits into a message", _payload),
    Check("nats.sync-interval", "messages are synced to disk before they are acknowledged", _sync_interval),
    Check("nats.atomic", "atomic batches can be had where the URL asks for them", _atomic, needs="nats.jetstream"),
    Check("nats.streams", "the group's streams exist", _streams, needs="nats.jetstream"),
    Check("nats.storage", "they are stored in files", _storage, needs="nats.streams"),
    Check("nats.replicas", "they have three replicas", _replicas, needs="nats.streams"),
    Check("nats.in-sync", "all replicas are current", _in_sync, needs="nats.streams"),
    Check("nats.discard", "full streams refuse", _discard, needs="nats.streams"),
    Check("nats.max-age", "no stream drops pending records for their age", _max_age, needs="nats.streams"),
    Check("nats.room", "no stream is near its bound", _room, needs="nats.streams"),
    Check("nats.persist-mode", "acknowledged records are stored", _persist_mode, needs="nats.streams"),
    Check("nats.flags", "streams are neither sealed nor closed to purging", _flags, needs="nats.streams"),
    Check("nats.targets", "targets are in streams", _targets, needs="nats.jetstream"),
    Check("nats.target-streams", "these are durable, and take the largest body", _target_streams, needs="nats.targets"),
)
