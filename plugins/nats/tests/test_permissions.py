"""What `txcore permissions` prints lets each user do its work, and nothing with what belongs to another group."""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec
import nats
import pytest
from txcore_conformance.kit import COMMIT, ROLLBACK, UNKNOWN, Answers, Kit
from txcore_nats.connection import PONGS_MAX
from txcore_nats.options import EVERY, GroupNames, Options, parse_url
from txcore_nats.testing import NatsHarness

import txcore
from txcore import Message
from txcore.cli import main
from txcore.records import LogKind, OpKind

README = Path(__file__).parents[1] / "README.md"
TIMEOUT_S = 20.0
#: What the doctor rightly finds on a single server without its monitoring port, and on streams with default settings.
UNSAFE = {"nats.sync-interval", "nats.replicas", "nats.target-streams", "nats.discard"}
#: Group -> the query of its URL; the target of each is a subject of its own in the stream that the query names.
GROUPS = {
    "orders": "stream=SHOP",
    "billing": "stream=SHOP",
    "orders.eu": "stream=SHOP",
    "stock": "stream=STOCK&release=atomic",
}
STREAMS = {"SHOP": ["shop.>"], "STOCK": ["stock.>"]}
TARGETS = {"orders": "shop.orders", "billing": "shop.billing", "orders.eu": "shop.orders.eu", "stock": "stock.moved"}
ROLES = {"producer": ("producer",), "checker": ("checker",), "maker": ("checker", "--create")}


def printed(*arguments):
    """Return what the command prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code in {0, 1}, output.getvalue()
    return output.getvalue()


def block(group, role):
    arguments = ["--group", group, "--user", f"{group}-{role}", "--target", TARGETS[group]]
    return printed("permissions", f"nats://host?{GROUPS[group]}", *arguments, "--role", *ROLES[role])


class Guarded:
    """A server with a user for each role of each group, whose rights are exactly those that the command prints."""

    def __init__(self, start):
        users = ["{user: admin, password: pw}"]
        users += [
            f'{{user: "{group}-{role}", password: pw,\n{block(group, role)}}}' for group in GROUPS for role in ROLES
        ]
        self.broker = start(**{"authorization.users": "[\n" + ",\n".join(users) + "\n]"})
        self._address = self.broker.url.partition("://")[2]
        self.broker.url = self.url("admin")

    def url(self, user):
        return f"nats://{user}:pw@{self._address}"

    def group_url(self, group, role, **options):
        query = "&".join(f"{key}={value}" for key, value in options.items())
        return f"{self.url(f'{group}-{role}')}?{GROUPS[group]}&half_bytes_max=1000000&lease_s=2&{query}"

    def make_groups(self):
        """Create the streams of targets as the administrator, and each group as its maker."""

        async def create():
            client = await nats.connect(self.url("admin"))
            for name, subjects in STREAMS.items():
                await client.jetstream().add_stream(name=name, subjects=subjects)
            await client.close()

        asyncio.run(create())
        for group in GROUPS:
            with txcore.connect(self.group_url(group, "maker")) as backend:
                backend.ensure_group(group, 2).result(TIMEOUT_S)

    def refusals(self):
        """Return the server's lines about refused actions, of all users until now."""
        lines = (self.broker.folder / "server.log").read_text(encoding="utf-8").splitlines()
        return [line for line in lines if "Violation" in line]

    @contextlib.contextmanager
    def refusing_nothing(self):
        """Check that the server refuses no action in the block, but the doctor's in a group that does not exist."""
        before = len(self.refusals())
        yield
        assert [each for each in self.refusals()[before:] if not re.search(r'"\S*txc[_.]doctor-', each)] == []

    def attempt(self, user, publish=(), subscribe=()):
        """Publish and subscribe as *user*; return the subjects that the server refuses, in lower case.

        The body is valid in no request, so a right that is there has no effect.
        """

        async def run():
            errors = []

            async def failed(error):
                errors.append(str(error))

            client = await nats.connect(self.url(user), error_cb=failed, inbox_prefix=Options(user=user).inbox)
            for subject in publish:
                await client.publish(subject, b"no request")
            for subject in subscribe:
                await client.subscribe(subject)
            for _ in range(PONGS_MAX):
                await client.flush(int(TIMEOUT_S))
            await client.close()
            return [found for error in errors for found in re.findall('violation for .* (?:to )?"(.*)"', error)]

        return asyncio.run(run())

    def ask(self, user, request, **body):
        """Return JetStream's answer to a request of *user*."""

        async def run():
            client = await nats.connect(self.url(user), inbox_prefix=Options(user=user).inbox)
            answer = await client.request(f"$JS.API.{request}", msgspec.json.encode(body), timeout=TIMEOUT_S)
            await client.close()
            return msgspec.json.decode(answer.data)

        return asyncio.run(run())


class GuardedHarness(NatsHarness):
    """The server as one user sees it; topics are subjects of a stream that exists."""

    def __init__(self, guarded, group, role):
        super().__init__(guarded.broker)
        self._stream = parse_url(f"nats://host?{GROUPS[group]}").stream
        self._url = guarded.group_url(group, role, keep_s=10)

    def start(self):
        super().start()
        self.url = self._url

    def create_topic(self, topic):
        """The topic's stream exists."""

    def stream_of(self, topic):
        return self._stream


@pytest.fixture(scope="module")
def guarded(started_broker):
    made = Guarded(started_broker)
    try:
        with made.refusing_nothing():
            made.make_groups()
        yield made
    finally:
        made.broker.remove()


@pytest.fixture
def kits(guarded) -> Iterator:
    """A function that returns a kit with the connections of one user."""
    with contextlib.ExitStack() as closing:

        def open_kit(group, role):
            harness = GuardedHarness(guarded, group, role)
            harness.start()
            closing.callback(harness.stop)
            kit = Kit(harness, group)
            closing.callback(kit.close)
            return kit

        yield open_kit


# -- what is allowed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", GROUPS)
def test_users_can_do_all_of_their_work(guarded, kits, group):
    """The server refuses nothing: from halves, ends and checks to parking, forcing, resuming, cleaning and doctor."""
    with guarded.refusing_nothing():
        producing, checking = kits(group, "producer"), kits(group, "checker")
        topic = TARGETS[group]
        bodies = _produce(producing, topic)
        checking.backend._shared.housekeeper._keep_s = 0.0
        operator = checking.operator()
        assert set(bodies.values()) == {each.transaction_id for each in operator.pending()}
        operator.rollback(bodies[b"forced"], "test data")
        checking.sweep(checking.checker(Answers(UNKNOWN, by_body={b"checked": COMMIT}), check_max=1))
        checking.stop_checkers()
        parked = {each.transaction_id for each in operator.parked()}
        assert {bodies[b"resumed"]} == parked
        operator.resume(bodies[b"resumed"], "the listener was down")
        checker = checking.checker(Answers(COMMIT))
        checking.sweep(checker)
        wanted = sorted([b"checked", b"resumed", b"sent", *(b"%d" % n for n in range(20))])
        checking.until(lambda: sorted(checking.bodies(topic)) == wanted, "the deliveries")
        _examine(guarded, group, topic)
        _clean(guarded, producing, checking, checker)


def _produce(kit, topic):
    with kit.producer(Answers(local=COMMIT)) as producer:
        sent = producer.send_message_in_transaction(Message(topic, b"sent"))
        dropped = producer.send_message_in_transaction(Message(topic, b"never"), arg=ROLLBACK)
        many = producer.send_many([(Message(topic, b"%d" % n), COMMIT) for n in range(20)])
    ends = [sent.end.state, dropped.end.state, *(each.end.state for each in many)]
    assert ends == [txcore.EndState.ACCEPTED] * len(ends)
    return {body: kit.orphan(Message(topic, body)).transaction_id for body in (b"checked", b"resumed", b"forced")}


def _clean(guarded, producing, checking, checker):
    """Send and check until the first half and the first parked record are removed."""
    names, housekeeper = names_of(checking.group), checking.backend._shared.housekeeper

    def firsts():
        asked = {names.stream(kind): names.subject(kind, EVERY) for kind in (LogKind.HALF, LogKind.PARKED)}
        forms = {stream: {"seq": 1, "next_by_subj": subject} for stream, subject in asked.items()}
        found = [guarded.ask("admin", f"STREAM.MSG.GET.{stream}", **form) for stream, form in forms.items()]
        return [answer["message"]["seq"] if "message" in answer else math.inf for answer in found]

    def is_clean():
        housekeeper._next_s.clear()
        _produce(producing, TARGETS[checking.group])
        checking.sweep(checker)
        return all(now > before for now, before in zip(firsts(), old, strict=True))

    old = firsts()
    checking.until(is_clean, "the cleaning")


def _examine(guarded, group, topic):
    report = printed("doctor", guarded.group_url(group, "checker"), "--group", group, "--target", topic)
    found = re.findall(r"^(?:WARN|FAIL) +(\S+):", report, re.MULTILINE)
    assert {"nats.replicas", "nats.target-streams"} <= set(found) <= UNSAFE, report


# -- what is refused --------------------------------------------------------------------------------------------------

#: Requests to JetStream about a stream of another group, and their last part where they have one.
READING = ("STREAM.INFO.{stream}", "STREAM.MSG.GET.{stream}", "DIRECT.GET.{stream}", "DIRECT.GET.{stream}.{subject}")
FOLLOWING = (
    "CONSUMER.CREATE.{stream}",
    "CONSUMER.CREATE.{stream}.own",
    "CONSUMER.CREATE.{stream}.own.{subject}",
    "CONSUMER.DURABLE.CREATE.{stream}.own",
    "CONSUMER.MSG.NEXT.{stream}.own",
    "CONSUMER.DELETE.{stream}.own",
    "CONSUMER.NAMES.{stream}",
    "CONSUMER.LIST.{stream}",
    "CONSUMER.INFO.{stream}.own",
)
CHANGING = (
    "STREAM.CREATE.{stream}",
    "STREAM.UPDATE.{stream}",
    "STREAM.PURGE.{stream}",
    "STREAM.DELETE.{stream}",
    "STREAM.MSG.DELETE.{stream}",
    "STREAM.SNAPSHOT.{stream}",
    "STREAM.RESTORE.{stream}",
)
RUNNING = ("producer", "checker")
#: Attackers and their victims; the names of the last two groups contain one another.
PAIRS = (("orders", "billing"), ("billing", "orders"), ("orders", "orders.eu"), ("orders.eu", "orders"))


def names_of(group):
    return GroupNames(group, parse_url(f"nats://host?{GROUPS[group]}"))


def logs_of(group):
    """Return each stream of a group that is all its own, with a subject in it."""
    names = names_of(group)
    kinds = (LogKind.HALF,) if group == "stock" else LogKind
    found = {names.stream(kind): names.subject(kind, 0).replace(">", "o.6f6e65") for kind in kinds}
    return found | {names.bucket_stream: names.key("checkpoint", 0)}


def requests(forms, streams):
    return [
        f"$JS.API.{form}".format(stream=each, subject=subject) for form in forms for each, subject in streams.items()
    ]


def all_refused(guarded, user, publish=(), subscribe=()):
    """Attempt everything as *user*, and check that the server refuses each."""
    wanted = {each.lower() for each in (*publish, *subscribe)}
    assert wanted
    assert wanted == set(guarded.attempt(user, publish, subscribe))


@pytest.mark.parametrize("form", [*READING, *FOLLOWING, *CHANGING])
@pytest.mark.parametrize("role", RUNNING)
@pytest.mark.parametrize(("group", "other"), [*PAIRS, ("stock", "orders"), ("orders", "stock")])
def test_no_request_about_another_groups_streams_is_allowed(guarded, group, other, role, form):
    """A user can neither read, follow nor change a stream of another group, in any form of the request."""
    all_refused(guarded, f"{group}-{role}", requests([form], logs_of(other)))


@pytest.mark.parametrize("role", RUNNING)
@pytest.mark.parametrize(("group", "other"), [*PAIRS, ("stock", "orders"), ("orders", "stock")])
def test_no_record_of_another_group_can_be_written_or_heard(guarded, group, other, role):
    """A user can neither publish to logs, keys and targets of another group, nor hear what others publish there."""
    names = names_of(other)
    subjects = [names.subject(LogKind.HALF, 0), names.final_subject(0, b"one"), names.claim_subject(0)]
    subjects += [names.op_subject(0, kind, b"one") for kind in (OpKind.TICK, OpKind.FORCE)]
    subjects += [names.subject(LogKind.PARKED, 0), TARGETS[other]]
    subjects += [names.key("checkpoint", 0), names.key("own", "lease", 0), names.key("own", "member", "me")]
    all_refused(guarded, f"{group}-{role}", subjects, [names.subject(LogKind.HALF, EVERY), *subjects])


@pytest.mark.parametrize("role", [*RUNNING, "maker"])
@pytest.mark.parametrize("group", GROUPS)
def test_no_user_hears_the_replies_to_others(guarded, group, role):
    """A user can subscribe to its own replies only: to those of no other user, by no pattern, nor to advisories."""
    others = [f"{each}-{other}" for each in GROUPS for other in ROLES if (each, other) != (group, role)]
    inboxes = [f"{Options(user=other).inbox}.>" for other in others]
    patterns = ["_INBOX.>", ">", "*.>", "*.*", "$JS.>", "$JS.EVENT.ADVISORY.>", "$KV.>", "txc.>", "shop.>", "stock.>"]
    all_refused(guarded, f"{group}-{role}", subscribe=inboxes + patterns)
    assert guarded.attempt(f"{group}-{role}", subscribe=[f"{Options(user=f'{group}-{role}').inbox}.>"]) == []


@pytest.mark.parametrize("role", [*RUNNING, "maker"])
@pytest.mark.parametrize("group", GROUPS)
def test_no_user_sees_or_makes_other_streams(guarded, group, role):
    """A user cannot list the account's streams, nor make one that copies another group's or holds its subjects."""
    listing = ["STREAM.NAMES", "STREAM.LIST", "ACCOUNT.PURGE.$G", "STREAM.CREATE.copy", "SERVER.REMOVE"]
    targets = ["STREAM.INFO.{stream}", *CHANGING, *FOLLOWING, *READING[1:]]
    others = {name: subjects[0] for name, subjects in STREAMS.items() if name not in GROUPS[group]}
    all_refused(guarded, f"{group}-{role}", [f"$JS.API.{each}" for each in listing] + requests(targets, others))


@pytest.mark.parametrize("role", RUNNING)
@pytest.mark.parametrize("group", [each for each in GROUPS if each != "stock"])
def test_targets_can_be_published_but_neither_read_nor_removed(guarded, group, role):
    """A user sees the settings of its targets' stream, and publishes to the listed targets; nothing else there."""
    forms = [*CHANGING, *FOLLOWING, *READING[1:]]
    unlisted = ["shop", f"{TARGETS[group]}.more", "shop.prices"]
    all_refused(guarded, f"{group}-{role}", [*requests(forms, {"SHOP": TARGETS[group]}), *unlisted], unlisted)


@pytest.mark.parametrize("group", GROUPS)
def test_a_producer_neither_reads_halves_nor_does_the_work_of_a_checker(guarded, group):
    """A producer cannot read or remove its group's halves and parked records, nor write claims and checkpoints."""
    names, streams = names_of(group), logs_of(group)
    streams.pop(names.op_stream, None)
    subjects = [names.subject(LogKind.PARKED, 0), names.key("checkpoint", 0), names.key("own", "lease", 0)]
    subjects += [names.claim_subject(0), names.marker_subject(LogKind.OP, 0), names.fence_subject(0)]
    reading = requests([*READING[1:], *FOLLOWING, *CHANGING], streams)
    following = requests([*FOLLOWING, *CHANGING], {names.op_stream: names.final_subject(0, b"one")})
    all_refused(guarded, f"{group}-producer", [*subjects, *reading, *following], [names.subject(LogKind.HALF, 0)])


@pytest.mark.parametrize("group", GROUPS)
def test_a_checker_neither_changes_nor_deletes_streams(guarded, group):
    """A checker cannot create, change, copy or delete even its own group's streams."""
    forms = [form for form in CHANGING if "PURGE" not in form and "MSG" not in form]
    all_refused(guarded, f"{group}-checker", requests(forms, logs_of(group)))


@pytest.mark.parametrize("request_name", ["CONSUMER.CREATE.txc_orders_half", "STREAM.CREATE.txc_orders_half"])
def test_a_request_names_the_stream_of_its_subject(guarded, request_name):
    """The server compares the stream in a request's body with that of its subject, so a right is for that alone."""
    config = {"name": "txc_billing_half", "ack_policy": "none", "deliver_policy": "all"}
    answer = guarded.ask("orders-maker", request_name, stream_name="txc_billing_half", config=config, **config)
    assert "error" in answer, answer


def test_what_a_user_may_do_is_not_refused(guarded):
    """The attempts of these tests show no refusal where there is a right: also of requests that are seldom sent."""
    op = names_of("orders").op_stream
    nudge = names_of("orders").op_subject(0, OpKind.NUDGE, b"one")
    rare = [f"$JS.API.STREAM.MSG.GET.{op}", "$JS.API.STREAM.INFO.SHOP", TARGETS["orders"], nudge]
    assert guarded.attempt("orders-producer", publish=rare) == []
    rare = ["$JS.API.STREAM.PURGE.KV_txc_orders", "$JS.API.STREAM.MSG.DELETE.txc_orders_parked"]
    assert guarded.attempt("orders-checker", publish=rare) == []
    names = names_of("stock")
    rare = [f"$JS.API.DIRECT.GET.STOCK.{each}" for each in (names.claim_subject(0), names.final_subject(0, b"one"))]
    assert guarded.attempt("stock-checker", publish=rare) == []
    assert guarded.attempt("admin", publish=["shop.prices"], subscribe=["_INBOX.>", "txc.billing.h.*"]) == []


def test_the_readme_shows_what_the_command_prints():
    """Each block in the README is the output of the command before it."""
    pattern = r"```sh\ntxcore (permissions .*?)\n```\n\n```conf\n(.*?)```"
    shown = re.findall(pattern, README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(shown) == 1
    for command, output in shown:
        assert output == printed(*shlex.split(command))
