"""The rights that `txcore permissions` prints are enough for each role, and Kafka's own script accepts them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AclOperation, NewTopic
from txcore_conformance.brokers.kafka_programs import write_acls_script
from txcore_conformance.kit import FAST, UNKNOWN, Answers, hasty, wait_until
from txcore_conformance.required import obtained
from txcore_kafka import PLUGIN
from txcore_kafka.options import parse_url, topic_settings

import txcore
from txcore import CheckPolicy, Message
from txcore.doctor.backend_checks import port_examination
from txcore.errors import UsageError
from txcore.findings import Level, Request, examine
from txcore.permissions import Access, Role
from txcore.registry import open_doctor

README = Path(__file__).parents[1] / "README.md"
TIMEOUT_S = 30.0
COMMIT = txcore.LocalTransactionState.COMMIT
PRODUCER, CHECKER = Role.PRODUCER, Role.CHECKER
everywhere = pytest.mark.parametrize("group", ["orders", "billing", "orders.eu"])
both_releases = pytest.mark.parametrize("release", ["steps", "transaction"])


def begun(backend, group, body, *, is_hasty=False):
    """Return a prepared transaction with one message; the half of a hasty one is checked soon."""
    immunity_s = 0.1 if is_hasty else backend.capabilities.release_time_max_s + 20.0
    policy = CheckPolicy(immunity_s=immunity_s)
    producer = txcore.TransactionProducer(hasty(backend) if is_hasty else backend, group, policy=policy)
    transaction = producer.begin()
    transaction.publish(Message(f"{group}.created", body))
    transaction.prepare()
    return transaction


def orphaned(guarded, group, body):
    """Return the id of a half whose producer does nothing more."""
    with guarded.opened("") as backend:
        return begun(backend, group, body, is_hasty=True).transaction_id


def checked(backend, group, answer, condition, **policy):
    """Let a checker with *answer* judge halves until *condition* holds."""
    checker = txcore.Checker(
        backend,
        group,
        listener=Answers(answer),
        policy=CheckPolicy(interval_s=0.001, **policy),
        limits=FAST,
    )
    wait_until(lambda: checker.run_once(TIMEOUT_S).partitions == 2 and condition(), "the goal of the checker")
    checker.stop()


@both_releases
@everywhere
def test_a_producer_needs_no_more(guarded, group, release):
    """A producer commits and rolls back with the printed rights; its ops are stored, so the checker is not needed."""
    with guarded.opened(guarded.user(group, PRODUCER, release), release) as backend:
        committed, undone = begun(backend, group, b"yes"), begun(backend, group, b"no")
        assert committed.commit().state is txcore.EndState.ACCEPTED
        assert undone.rollback().state is txcore.EndState.ACCEPTED
    with guarded.opened("") as backend, txcore.Operator(backend, group, by="ann") as operator:
        states = [operator.show(each.transaction_id).state for each in (committed, undone)]
    assert states == ["committed", "rolled back"]


@both_releases
@everywhere
def test_a_checker_needs_no_more(guarded, group, release):
    """With the printed rights a checker claims, decides, parks and stores its place; an operator lists and forces."""
    lost, parked, forced = (orphaned(guarded, group, body) for body in (b"lost", b"parked", b"forced"))
    with (
        guarded.opened(guarded.user(group, CHECKER, release), release) as backend,
        txcore.Operator(backend, group, by="ann") as operator,
    ):
        assert {lost, parked, forced} <= {each.transaction_id for each in operator.pending()}
        operator.rollback(forced, "test data")
        checked(backend, group, UNKNOWN, lambda: {lost, parked} <= ids(operator.parked()), check_max=1)
        operator.resume(parked, "the listener was down")
        operator.rollback(lost, "test data")
        checked(backend, group, COMMIT, lambda: not {lost, parked, forced} & ids(operator.pending()))
        states = [operator.show(each).state for each in (lost, parked, forced)]
        assert states == ["rolled back", "committed", "rolled back"]
        assert any(backend.load_checkpoint(group, partition).result(TIMEOUT_S) for partition in (0, 1))


def ids(entries):
    return {each.transaction_id for each in entries}


@both_releases
def test_a_checkers_doctor_finds_what_the_administrators_finds(guarded, release):
    """The doctor's answers about a group and its targets are the same with a checker's rights and with all rights."""
    found = []
    for user in ("", guarded.user("orders", CHECKER, release)):
        request = Request("orders", ("orders.created",))
        with guarded.opened(user, release) as backend:
            own = open_doctor(guarded.url(user, release), request)
            report = examine(own).joined(examine(port_examination(backend, request)))
        found.append({line.name: (line.finding.level, line.finding.change) for line in report.lines})
    differing = {name for name, finding in found[0].items() if found[1].get(name) != finding}
    # An administrator may do too much.
    exposed = {"kafka.anonymous", "kafka.rights"}
    assert [{each[name][0] for name in exposed} for each in found] == [{Level.WARN}, {Level.OK}]
    # These read the settings of a broker, which belong to no group.
    assert differing - exposed <= {
        "kafka.version",
        "kafka.auto-create",
        "kafka.session-timeout",
        "kafka.internal-topics",
    }


@pytest.mark.parametrize("role", list(Role))
def test_with_create_a_user_makes_its_group_and_nothing_else(guarded, newcomer, role):
    """A user with `--create` makes the four topics of its group, and then uses them; it can make no other topic."""
    group = f"new-{role.value}"
    guarded.allow(guarded.acls_of(guarded.printed(newcomer, group, role, targets=("orders.created",), creates=True)))
    with guarded.opened(newcomer) as backend:
        assert backend.ensure_group(group, 2).result(TIMEOUT_S) == 2
    with guarded.opened(newcomer) as backend:
        assert backend.ensure_group(group, 2).result(TIMEOUT_S) == 2
    found = guarded.admin.list_topics(timeout=TIMEOUT_S).topics
    assert {name for name in found if name.startswith(f"txc.{group}.")} == set(
        topic_settings(parse_url("kafka://a"), group)
    )
    admin = guarded.admin_client(newcomer)
    for topic in (f"txc.{group}.eu.half", "anything"):
        (answer,) = admin.create_topics([NewTopic(topic, 1)]).values()
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            answer.result(TIMEOUT_S)


@pytest.mark.parametrize(("user", "role"), [("plain", PRODUCER), ('o\'neill & $HOME "co"', CHECKER)])
def test_the_printed_text_runs_in_a_shell(guarded, tmp_path, user, role):
    """Kafka's own `kafka-acls.sh` adds what the printed text says, also for a user whose name a shell would expand."""
    obtained("kafka", lambda: write_acls_script(tmp_path))
    text = guarded.printed(user, "orders.eu", role, "transaction", creates=True)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(
        ["bash", "-eu"], input=text, text=True, check=True, capture_output=True, env=environment, timeout=300
    )
    try:
        assert guarded.acls(user) == set(guarded.acls_of(text))
    finally:
        guarded.forbid(user)


def test_a_producer_has_the_least_rights(guarded):
    """A producer may read nothing, and is given no right to the parked and checkpoint topics."""
    acls = guarded.acls_of(guarded.printed("me", "orders", PRODUCER, "transaction"))
    assert AclOperation.READ not in {acl.operation for acl in acls}
    assert {acl.name for acl in acls} == {"txc.orders.half", "txc.orders.op", "orders.created", "txc.orders:"}


def test_targets_that_were_not_named_are_asked_for(guarded):
    """Without a target the text says how to name one, as the group can publish nothing."""
    assert "# No target was named: --target TOPIC" in guarded.printed("me", "orders", CHECKER, targets=())


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "*"},
        {"user": "orders "},
        {"user": "a\nb"},
        {"group": "*"},
        {"group": "orders:eu"},
        {"targets": ("*",)},
        {"targets": ("txc.billing.half",)},
        {"targets": ("__consumer_offsets",)},
    ],
    ids=str,
)
def test_a_name_that_would_widen_the_rights_is_misuse(fields):
    """Names that Kafka's script takes for all users or topics are refused, and so are topics of txcore and of Kafka."""
    access = Access(**{"user": "orders", "group": "orders", "role": CHECKER, "targets": ("orders.created",)} | fields)
    with pytest.raises(UsageError):
        PLUGIN.permissions_of("kafka://localhost", access)


def test_the_readme_shows_what_is_printed():
    """The commands in README.md print the text that follows them."""
    (section,) = re.findall(r"^## Permissions\n(.*?)^## ", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    shown = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    commands, *texts = shown
    lines = commands.strip().splitlines()
    assert len(lines) == len(texts) == 2
    for line, text in zip(lines, texts, strict=True):
        words = shlex.split(line, comments=True)
        ran = subprocess.run(
            [os.sys.executable, "-m", "txcore.cli", *words[1:]], capture_output=True, text=True, check=True, timeout=100
        )
        assert ran.stdout == text
