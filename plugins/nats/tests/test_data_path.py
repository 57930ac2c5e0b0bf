"""Halves, targets and ends on the live server: refusals, uniqueness, and records that block nothing."""

from __future__ import annotations

import base64
import secrets

import pytest
from txcore_conformance import raw
from txcore_conformance.kit import COMMIT, UNKNOWN, Answers, Recorder, error_of
from txcore_nats import lookups

from txcore import Message, MessageRejectedError, wire
from txcore.errors import ConfigError
from txcore.records import Op, OpKind, Resolution, Status

DURABLE, REFUSED, SUPERSEDED = Status.DURABLE, Status.REFUSED, Status.SUPERSEDED


def journal(half, kind, **fields):
    """Return the release of one journal record."""
    return Resolution(
        half, Op(kind, half.transaction_id, half.generation, raw.BY, 5, **fields), (), b"", raw.BY, flush=True
    )


def test_of_many_racing_ends_one_wins_and_all_learn_which(kit):
    """When two backends end the same halves in opposite ways, each half has one final op, which both backends learn."""
    topic = kit.topic()
    other = kit.connect()
    halves = [raw.half(kit, topic, body=b"%d" % number) for number in range(100)]
    raw.append(kit, *halves)
    commits, rollbacks = (
        Recorder([raw.commit(half) for half in halves]),
        Recorder([raw.rollback(half) for half in halves]),
    )
    kit.backend.release(commits)
    other.release(rollbacks)
    pairs = list(zip(commits.wait(kit.backend, kit.timeout_s), rollbacks.wait(other, kit.timeout_s), strict=True))
    ops = raw.ops(kit)
    finals = {op.transaction_id: op.kind for op in ops}
    assert 100 == len(ops) == len(finals)
    for half, (commit, rollback) in zip(halves, pairs, strict=True):
        winner = finals[half.transaction_id]
        assert {DURABLE, SUPERSEDED} == {commit.status, rollback.status}
        assert (commit.status is DURABLE) is (winner == OpKind.COMMIT)
        loser = rollback if winner == OpKind.COMMIT else commit
        assert winner == loser.decision
    committed = {half.messages[0].body for half in halves if finals[half.transaction_id] == OpKind.COMMIT}
    assert committed <= set(kit.bodies(topic))


def test_a_commit_looks_before_its_targets_go_out(kit):
    """After a ROLLBACK a COMMIT is SUPERSEDED and publishes no target, from any backend."""
    topic = kit.topic()
    half = raw.half(kit, topic)
    raw.append(kit, half)
    raw.release(kit, raw.rollback(half))
    for backend in (kit.backend, kit.connect()):
        (late,) = raw.release(kit, raw.commit(half), backend=backend)
        assert (late.status, late.decision) == (SUPERSEDED, OpKind.ROLLBACK)
    assert kit.bodies(topic) == []


def answered_directly(kit, monkeypatch):
    """Return a list that records the requests for single messages and for many together."""
    asked = []
    send = kit.backend._publisher.send

    def noted(sending):
        if ".GET." in sending.subject:
            asked.append(sending.subject)
        send(sending)

    monkeypatch.setattr(kit.backend._publisher, "send", noted)
    return asked


def test_a_batch_of_commits_looks_with_one_request(kit, monkeypatch):
    """One request finds all commits of a batch that come after a ROLLBACK or DISCARD; only the others are published."""
    topic = kit.topic()
    halves = [raw.half(kit, topic, body=b"%d" % number) for number in range(60)]
    raw.append(kit, *halves)
    raw.release(kit, *[raw.rollback(half) for half in halves[:20]], *[raw.discard(half) for half in halves[20:30]])
    asked = answered_directly(kit, monkeypatch)
    outcomes = raw.release(kit, *[raw.commit(half) for half in halves], raw.commit(halves[5]))
    assert raw.statuses(outcomes) == [SUPERSEDED] * 30 + [DURABLE] * 30 + [SUPERSEDED]
    assert [each.decision for each in outcomes[:30]] == [OpKind.ROLLBACK] * 20 + [OpKind.DISCARD] * 10
    assert sorted(b"%d" % number for number in range(30, 60)) == sorted(kit.bodies(topic))
    assert len(asked) == 1


def test_a_server_that_finds_only_single_places_is_asked_for_single_places(kit, monkeypatch):
    """After a refused request for many messages, one request is sent for each, and none for many later on."""
    topic = kit.topic()
    halves = [raw.half(kit, topic, body=b"%d" % number) for number in range(20)]
    raw.append(kit, *halves)
    raw.release(kit, *[raw.rollback(half) for half in halves[:5]])
    monkeypatch.setattr(lookups, "as_json", lambda _: b'{"unknown": 1}')
    asked = answered_directly(kit, monkeypatch)
    for part in (halves[:10], halves[10:]):
        outcomes = raw.release(kit, *[raw.commit(half) for half in part])
        assert all(
            outcome.status is (SUPERSEDED if half in halves[:5] else DURABLE)
            for half, outcome in zip(part, outcomes, strict=True)
        )
    assert len(kit.bodies(topic)) == 15
    assert len(asked) == 1 + 20


def test_the_first_final_op_holds_for_every_generation(kit):
    """A final op supersedes every end of a later generation."""
    topic = kit.topic()
    half = raw.half(kit, topic)
    raw.append(kit, half)
    raw.release(kit, raw.commit(half))
    resumed = raw.half(kit, topic, generation=1, of=half)
    raw.append(kit, resumed)
    for late in raw.release(kit, raw.rollback(resumed), raw.discard(resumed), raw.commit(resumed)):
        assert (late.status, late.decision) == (SUPERSEDED, OpKind.COMMIT)
    assert 1 == len(kit.bodies(topic)) == len(raw.ops(kit))


def test_a_discard_of_a_later_generation_holds_for_earlier_ones(kit):
    """Each generation may have a DISCARD; it supersedes ends up to its own generation, but not later ones."""
    topic = kit.topic()
    half = raw.half(kit, topic)
    generations = [half, *(raw.half(kit, topic, generation=number, of=half) for number in (1, 2))]
    raw.append(kit, *generations)
    assert raw.statuses(raw.release(kit, raw.discard(generations[0]))) == [DURABLE]
    assert raw.statuses(raw.release(kit, raw.discard(generations[1]))) == [DURABLE]
    for late in raw.release(kit, raw.commit(generations[0]), raw.rollback(generations[1]), raw.discard(generations[1])):
        assert (late.status, late.decision) == (SUPERSEDED, OpKind.DISCARD)
    assert raw.statuses(raw.release(kit, raw.commit(generations[2]))) == [DURABLE]
    assert kit.bodies(topic) == [b"payload"]


def test_journal_records_block_no_end(kit):
    """Any number of CHECKED, DECIDED, NUDGE and FORCE are stored before and after an end, in order."""
    half = raw.half(kit, kit.topic())
    raw.append(kit, half)
    kinds = [OpKind.CHECKED, OpKind.CHECKED, OpKind.DECIDED, OpKind.NUDGE, OpKind.FORCE]
    for kind in kinds:
        assert raw.statuses(raw.release(kit, journal(half, kind))) == [DURABLE]
    assert raw.statuses(raw.release(kit, raw.commit(half))) == [DURABLE]
    assert raw.statuses(raw.release(kit, journal(half, OpKind.NUDGE))) == [DURABLE]
    assert [*kinds, OpKind.COMMIT, OpKind.NUDGE] == [op.kind for op in raw.ops(kit)]


def test_a_full_half_log_refuses_and_still_takes_ops(kit):
    """A full half log refuses halves and drops none; all pending halves can still be ended."""
    topic = kit.topic()
    pending = [raw.half(kit, topic, body=b"x" * 1_000) for _ in range(5)]
    raw.append(kit, *pending)
    stream = f"txc_{kit.group}_half"
    kit.configure(stream, max_bytes=kit.state(stream)["bytes"])
    (refused,) = raw.append(kit, raw.half(kit, topic))
    assert REFUSED is refused.status
    assert "maximum bytes" in str(refused.error)
    assert raw.statuses(raw.release(kit, *[raw.commit(half) for half in pending])) == [DURABLE] * 5
    assert 5 == len(raw.ops(kit)) == len(kit.bodies(topic)) == len(raw.halves(kit, 5))


def test_a_target_stream_at_its_limit_refuses_and_is_tried_again(kit):
    """A release to a full target stream is REFUSED without an op; it is DURABLE after the stream has room."""
    name, topic = kit.stream(max_msgs=2, discard="new")
    halves = [raw.half(kit, topic, body=b"%d" % number) for number in range(3)]
    raw.append(kit, *halves)
    outcomes = [raw.release(kit, raw.commit(half))[0] for half in halves]
    assert raw.statuses(outcomes) == [DURABLE, DURABLE, REFUSED]
    assert outcomes[2].missing == (0,)
    assert len(raw.ops(kit)) == 2
    kit.configure(name, max_msgs=3)
    assert raw.statuses(raw.release(kit, raw.commit(halves[2]))) == [DURABLE]


def test_a_target_that_stays_full_is_parked_as_undeliverable(kit):
    """The checker parks a half whose target stays full; a resume delivers it without another check."""
    name, topic = kit.stream(max_msgs=1, discard="new")
    kit.publish(topic, b"in the way")
    identity = kit.orphan(Message(topic, b"body")).transaction_id
    kit.sweep(kit.checker(Answers(COMMIT)))
    (parked,) = kit.operator().parked()
    assert (identity, "UNDELIVERABLE") == (parked.transaction_id, parked.code)
    kit.stop_checkers()
    kit.configure(name, max_msgs=10)
    kit.operator().resume(identity)
    kit.sweep(kit.checker(Answers(UNKNOWN)))
    assert kit.journey(identity).final == OpKind.COMMIT


def test_a_target_whose_stream_was_deleted_meanwhile_is_refused(kit):
    """A release to a stream deleted after the half is REFUSED without an op, and DURABLE when the stream is back."""
    name, topic = kit.stream()
    half = raw.half(kit, topic)
    raw.append(kit, half)
    kit.api(f"STREAM.DELETE.{name}")
    (refused,) = raw.release(kit, raw.commit(half))
    assert (refused.status, refused.missing) == (REFUSED, (0,))
    assert topic in str(refused.error)
    assert raw.ops(kit) == []
    assert raw.statuses(raw.append(kit, raw.half(kit, topic))) == [REFUSED]
    kit.api(f"STREAM.CREATE.{name}", name=name, subjects=[f"{name}.>"])
    assert raw.statuses(raw.release(kit, raw.commit(half))) == [DURABLE]


@pytest.mark.parametrize(
    ("config", "word"),
    [({"no_ack": True}, "no_ack"), ({"duplicate_window": 1_000_000_000}, "duplicate_window_s")],
    ids=["no_ack", "short window"],
)
def test_a_stream_that_keeps_no_promise_is_refused_before_the_half(kit, config, word):
    """A half for a stream that never acknowledges, or forgets ids too soon, is refused; the error names the setting."""
    _, topic = kit.stream(**config)
    (refused,) = raw.append(kit, raw.half(kit, topic))
    assert (REFUSED, topic) == (refused.status, refused.error.topic)
    assert word in str(refused.error)


def test_a_short_duplicate_window_can_be_agreed_to(kit):
    """A short window is accepted if `duplicate_window_s` is equal, and the stream drops duplicates."""
    _, topic = kit.stream(duplicate_window=2_000_000_000)
    backend = kit.connect(duplicate_window_s=2)
    half = raw.half(kit, topic)
    assert raw.statuses(raw.append(kit, half, backend=backend)) == [DURABLE]
    for _ in range(2):
        raw.release(kit, Resolution(half, None, (0,), b"", raw.BY), backend=backend)
    assert kit.state(topic.removesuffix(".topic"))["messages"] == 1


def test_a_message_too_large_for_its_stream_is_refused_before_the_half(kit):
    """A half whose message exceeds the stream's `max_msg_size` is refused alone; the others are stored."""
    _, topic = kit.stream(max_msg_size=5_000)
    small, large = raw.half(kit, topic, body=b"x" * 1_000), raw.half(kit, topic, body=b"x" * 5_000)
    outcomes = raw.append(kit, small, large, raw.half(kit, topic))
    assert raw.statuses(outcomes) == [DURABLE, REFUSED, DURABLE]
    assert ("size", topic) == (outcomes[1].error.reason, outcomes[1].error.topic)


def test_a_stream_whose_limit_sank_meanwhile_refuses_at_release(kit):
    """A target that is too large since its stream's limit was lowered is REFUSED, not UNKNOWN."""
    name, topic = kit.stream()
    half = raw.half(kit, topic, body=b"x" * 5_000)
    raw.append(kit, half)
    kit.configure(name, max_msg_size=100)
    (refused,) = raw.release(kit, raw.commit(half))
    assert (refused.status, refused.missing) == (REFUSED, (0,))
    assert isinstance(refused.error, MessageRejectedError)


def test_many_subjects_of_one_stream_need_one_question(kit):
    """After one subject of a stream is known, halves for its other subjects need no question."""
    name, _ = kit.stream()
    raw.append(kit, raw.half(kit, f"{name}.first"))
    halves = [raw.half(kit, f"{name}.{number}") for number in range(300)]
    lasts_s, outcomes = kit.lasts_s(lambda: raw.append(kit, *halves))
    assert {DURABLE} == set(raw.statuses(outcomes))
    assert lasts_s < kit.timeout_s / 4
    assert len(kit.backend._checks._cache._answers) == 301


def test_two_targets_on_one_subject_are_two_messages(kit):
    """Two targets of a transaction on one subject are delivered as two messages with different ids."""
    topic = kit.topic()
    half = raw.half(kit, topic, topic)
    raw.append(kit, half)
    raw.release(kit, raw.commit(half))
    ids = {each.headers["txcore-id"] for each in kit.delivered(topic)}
    assert {wire.target_id(half.transaction_id, 0), wire.target_id(half.transaction_id, 1)} == ids


def test_something_that_is_no_stream_proves_nothing(kit):
    """A target is UNKNOWN if a plain subscriber answers it, and no stream."""
    topic = f"nowhere.{secrets.token_hex(4)}"

    async def answer():
        client = await kit.harness._connected()

        async def reply(message):
            await message.respond(b"+OK")

        return await client.subscribe(topic, cb=reply)

    kit.harness._call(answer())
    half = raw.half(kit, topic)
    (outcome,) = raw.release(kit, Resolution(half, None, (0,), b"", raw.BY))
    assert (outcome.status, outcome.missing) == (Status.UNKNOWN, (0,))


def test_headers_of_halves_and_ops_can_be_read_without_bodies(kit):
    """Halves and ops have their id, generation and kind in headers too."""
    half = raw.half(kit, kit.topic(), generation=3)
    raw.append(kit, half)
    raw.release(kit, raw.rollback(half))
    identity = wire.target_id(half.transaction_id, 0).removesuffix(":0")
    for stream, wanted in (("half", {"txcore-generation": "3"}), ("op", {"txcore-kind": "ROLLBACK"})):
        answer = kit.api(f"STREAM.MSG.GET.txc_{kit.group}_{stream}", seq=1)["message"]
        headers = base64.b64decode(answer["hdrs"]).decode()
        for name, value in ({"txcore-id": identity} | wanted).items():
            assert f"{name}: {value}\r\n" in headers


def test_settings_that_differ_are_named(kit):
    """The error for a group names each different setting: the replicas, `discard` of halves, `max_age` of ops."""
    assert kit.backend
    assert "num_replicas" in str(
        error_of(lambda: kit.connect(partition_count=0, replicas=3).ensure_group(kit.group), 20)
    )
    kit.configure(f"txc_{kit.group}_half", discard="old")
    kit.configure(f"txc_{kit.group}_op", max_age=3_600_000_000_000)
    error = error_of(lambda: kit.connect(partition_count=0).ensure_group(kit.group), 20)
    assert isinstance(error, ConfigError)
    assert "discard 'old', not 'new'" in str(error)
    assert "max_age" in str(error)


def test_a_missing_stream_of_a_group_is_named(kit):
    """A deleted op log is a ConfigError that names its stream; the stream is not created again."""
    assert kit.backend
    kit.api(f"STREAM.DELETE.txc_{kit.group}_op")
    error = error_of(lambda: kit.connect(partition_count=0).ensure_group(kit.group), 20)
    assert isinstance(error, ConfigError)
    assert f"txc_{kit.group}_op is missing" in str(error)


def test_what_the_server_cannot_carry_is_refused_at_the_start(kit):
    """A `body_size_max` for which the server's `max_payload` has no room is a ConfigError by that name."""
    error = error_of(lambda: kit.connect(partition_count=0, body_size_max=2_000_000).ensure_group(kit.group), 20)
    assert isinstance(error, ConfigError)
    assert error.key == "body_size_max"


def test_groups_with_awkward_names_work(kit):
    """A group's name may have dots, spaces, wildcards and letters outside ASCII."""
    topic = kit.topic()
    kit.group = f"Aufträge eu.{kit.group} *>"
    backend = kit.connect()
    half = raw.half(kit, topic)
    assert raw.statuses(raw.append(kit, half, backend=backend)) == [DURABLE]
    assert raw.statuses(raw.release(kit, raw.commit(half), backend=backend)) == [DURABLE]
    assert [half.body] == [record.body for record in raw.halves(kit, 1, backend=backend)]
    assert [op.kind for op in raw.ops(kit, backend=backend)] == [OpKind.COMMIT]


def test_a_partition_that_does_not_exist_is_refused(kit):
    """A half, a release and a mark for a partition that the group does not have are refused."""
    half = raw.half(kit, kit.topic(), partition=7)
    assert raw.statuses(raw.append(kit, half)) == [REFUSED]
    assert raw.statuses(raw.release(kit, raw.rollback(half))) == [REFUSED]
    assert isinstance(error_of(lambda: raw.mark(kit, OpKind.TICK, partition=7), 20), ConfigError)


def test_an_op_log_that_may_not_be_asked_directly_is_asked_through_its_leader(kit):
    """Without `allow_direct`, look-ups ask the leader of the op stream, with the same results."""
    topic = kit.topic()
    assert kit.backend
    kit.configure(f"txc_{kit.group}_op", allow_direct=False)
    backend = kit.connect()
    first, second = raw.half(kit, topic, body=b"first"), raw.half(kit, topic, body=b"second")
    raw.append(kit, first, second, backend=backend)
    assert raw.statuses(raw.release(kit, raw.commit(first), raw.discard(second), backend=backend)) == [DURABLE, DURABLE]
    late = raw.release(kit, raw.rollback(first), raw.commit(first), raw.commit(second), backend=backend)
    assert [(o.status, o.decision) for o in late] == [(SUPERSEDED, OpKind.COMMIT)] * 2 + [(SUPERSEDED, OpKind.DISCARD)]
    resumed = raw.half(kit, topic, body=b"second", generation=1, of=second)
    assert raw.statuses(raw.release(kit, raw.commit(resumed), backend=backend)) == [DURABLE]
    assert kit.bodies(topic) == [b"first", b"second"]
