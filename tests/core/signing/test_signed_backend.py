"""A group that signs: forged records change nothing, and are seen; genuine ones work as without signatures."""

from __future__ import annotations

from random import Random

import pytest
from txcore_conformance.kit import Answers, Observed, wait_until

from txcore import Checker, CheckPolicy, LocalTransactionState, Message, TransactionProducer, wire
from txcore.errors import TransactionStateError
from txcore.ids import IdFactory
from txcore.memory import KAFKA_LIKE, STRONG, MemoryBackend, MemoryBroker
from txcore.operator.operator import Operator
from txcore.port import Backend, SettlesEach
from txcore.records import Checkpoint, Half, HalfRecord, LogKind, Op, OpKind, Position, Resolution, TargetMessage
from txcore.registry import connect
from txcore.signed_records import decode_signed, decode_signed_ops
from txcore.signing import GroupKeys, SignedBackend, SigningKeys

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
KEYS = SigningKeys({"orders": GroupKeys(sign_with="old", keys={"old": OLD})})
FORGER = SigningKeys({"orders": GroupKeys(sign_with="old", keys={"old": NEW})})
SOON = CheckPolicy(immunity_s=0.05, interval_s=0.05, check_max=3)


class One(SettlesEach):
    """A batch of one item."""

    def __init__(self, item):
        self.items = (item,)
        self.outcomes = []

    def settle(self, index, outcome):
        """See `Batch.settle`."""
        self.outcomes.append(outcome)


class Place:
    """A broker in memory, and what a process with its credentials may append."""

    def __init__(self, profile=KAFKA_LIKE):
        self.broker = MemoryBroker(profile)
        self.broker.ensure_group("orders", 1)
        self.plain = MemoryBackend(self.broker)
        self.ids = IdFactory(self.broker.clock, Random(5))

    def open(self, keys=KEYS):
        """Return a connection of a process with these keys."""
        return SignedBackend(MemoryBackend(self.broker), keys)

    def half(self, backend=None, **fields):
        """Append a half; returns its id."""
        identity = self.ids.new(1)
        message = TargetMessage("sent", b"k", b"forged", {})
        made = Half(1, identity, "orders", 0, 0, 5, 0, 50, 3, fenced=False, by="forger", messages=[message])
        for name, value in fields.items():
            setattr(made, name, value)
        record = HalfRecord("orders", 0, identity, 0, wire.encode_half(made), ())
        (backend or self.plain).append_halves(One(record))
        return identity

    def op(self, identity, kind, backend=None, **fields):
        """Append an op."""
        half = HalfRecord("orders", 0, identity, 0, b"", ())
        (backend or self.plain).release(One(Resolution(half, Op(kind, identity, **fields), flush=True)))

    def sent(self):
        """Return the bodies of the target topic."""
        return [each.body for each in self.broker.topics.get("sent", ())]


@pytest.fixture
def place(request):
    """Return a broker with the group `orders` of one partition, of the profile in the test's parameter."""
    return Place(getattr(request, "param", KAFKA_LIKE))


@pytest.fixture
def checked(place):
    """Return a function that runs a checker with keys until a condition holds; its events are returned."""
    running = []

    def run(until, keys=KEYS, answer=LocalTransactionState.COMMIT):
        observed = Observed()
        run.observed.append(observed)
        checker = Checker(place.open(keys), "orders", listener=Answers(answer), policy=SOON, plugins=[observed])
        running.append(checker)
        with checker:
            wait_until(until, "what the test waits for")
        return observed

    run.observed = []
    yield run
    for checker in running:
        checker.stop()


def orphan(place, keys=KEYS, body=b"genuine"):
    """Append the half of a producer that then died; returns its id."""
    message = TargetMessage("sent", b"k", body, {})
    return place.half(place.open(keys), messages=[message])


def parked(place, keys=KEYS):
    """Return (code, id) of everything that an operator with these keys sees parked."""
    return [(each.code, each.transaction_id) for each in Operator(place.open(keys), "orders").parked()]


def test_signed_backend_is_a_backend(place):
    """It has every member of the port."""
    backend: Backend = place.open()
    assert {name for name in vars(Backend) if not name.startswith("_")} <= set(dir(backend))


def test_producer_and_checker_work_as_without_signatures(place, checked):
    """A commit is delivered at once, an orphan by the checker; every record in the logs is signed."""
    with TransactionProducer(place.open(), "orders", listener=Answers(local=LocalTransactionState.COMMIT)) as producer:
        producer.send_message_in_transaction(Message("sent", b"at once"))
    orphan(place)
    checked(lambda: len(place.sent()) == 2)
    assert [b"at once", b"genuine"] == place.sent()
    halves, ops = (place.broker.log("orders", kind, 0) for kind in (LogKind.HALF, LogKind.OP))
    assert all(decode_signed(record.body) for record in halves)
    assert all(op.mac for record in ops for op in decode_signed_ops(record.body))


@pytest.mark.parametrize("forged_by", [None, FORGER], ids=["unsigned", "wrong key"])
@pytest.mark.parametrize("fields", [{}, {"decided": 1}], ids=["half", "decided half"])
def test_forged_half_is_parked_and_publishes_nothing(place, checked, forged_by, fields):
    """It is parked with code UNSIGNED, though the listener would answer COMMIT for everything."""
    place.half(None if forged_by is None else place.open(forged_by), **fields)
    orphan(place)
    observed = checked(lambda: place.sent() and parked(place))
    assert ["UNSIGNED"] == [code for code, _ in parked(place)]
    assert [b"genuine"] == place.sent()
    assert observed.named("log.poison")


@pytest.mark.parametrize(
    ("kind", "fields"),
    [(OpKind.ROLLBACK, {}), (OpKind.FORCE, {"decision": 2, "forced": 2, "by": "anna", "reason": "approved"})],
    ids=["rollback", "force"],
)
@pytest.mark.parametrize("forged_by", [None, FORGER], ids=["unsigned", "wrong key"])
def test_forged_op_keeps_no_message_back(place, checked, kind, fields, forged_by):
    """A committed transaction is delivered, and the forged op is counted."""
    identity = orphan(place)
    place.op(identity, kind, None if forged_by is None else place.open(forged_by), **fields)
    observed = checked(place.sent)
    assert [b"genuine"] == place.sent()
    assert observed.named("log.poison")


@pytest.mark.parametrize("place", [STRONG], indirect=True)
def test_forged_final_op_is_reported_where_the_store_keeps_ends_unique(place, checked):
    """There it takes the transaction's place in the store, so that no end can follow; the conflict is an alert."""
    place.op(orphan(place), OpKind.ROLLBACK)
    observed = checked(lambda: checked.observed[-1].named("op.conflict"))
    assert observed.named("log.poison")
    assert [] == place.sent()


def test_forged_claims_do_not_stop_the_owner(place, checked):
    """The checker keeps its partition while a forger writes one claim after another."""

    def forged():
        for number in range(20):
            token = bytes([number]) * 16
            place.plain.mark("orders", 0, Op(OpKind.CLAIM, token, token=token)).result(5)
        orphan(place)
        return True

    is_forged = []
    observed = checked(lambda: (is_forged or is_forged.append(forged())) and place.sent())
    assert not observed.named("checker.stood_down")
    assert [b"genuine"] == place.sent()


def test_forged_checkpoint_hides_no_half(place, checked):
    """A checkpoint after all records is not believed, so the orphan before it is still delivered."""
    orphan(place)
    end = len(place.broker.log("orders", LogKind.HALF, 0))
    place.broker.checkpoints["orders", 0] = Checkpoint(Position(end), None, b"", b"")
    checked(place.sent)
    assert [b"genuine"] == place.sent()


def test_record_of_another_group_proves_nothing_here(place, checked):
    """A genuine record that is copied into another group's log is parked there."""
    both = SigningKeys(dict.fromkeys(("orders", "billing"), GroupKeys(sign_with="old", keys={"old": OLD})))
    place.broker.ensure_group("billing", 1)
    orphan(place)
    copied = place.broker.log("orders", LogKind.HALF, 0)[0].body
    place.broker.append("billing", LogKind.HALF, 0, copied)
    with Checker(place.open(both), "billing", listener=Answers(LocalTransactionState.COMMIT), policy=SOON):
        wait_until(lambda: Operator(place.open(both), "billing").parked(), "the parked record")
    assert ["UNSIGNED"] == [each.code for each in Operator(place.open(both), "billing").parked()]
    assert [] == place.sent()


def test_checker_without_keys_stops_instead_of_parking(place, checked):
    """The partition is blocked with a reason until the checker gets its keys; then the half is delivered."""
    orphan(place)
    observed = checked(lambda: checked.observed[-1].named("partition.blocked"), keys=SigningKeys({}))
    assert [] == place.sent() == parked(place)
    assert "signing_keys" in str(observed.named("partition.blocked"))
    checked(place.sent)
    assert [b"genuine"] == place.sent()


def test_group_that_begins_to_sign_accepts_what_is_there(place, checked):
    """With `unsigned = "accept"` old records are judged; after the change back they are parked."""
    lenient = SigningKeys({"orders": GroupKeys(sign_with="old", keys={"old": OLD}, accepts_unsigned=True)})
    place.half()
    checked(place.sent, keys=lenient)
    place.half()
    checked(lambda: parked(place))
    assert [b"forged"] == place.sent()


def test_half_of_an_unknown_key_resumes_once_the_key_is_known(place, checked):
    """A producer got a new key before its checker: the half is parked, and an operator with both keys resumes it."""
    rotated = SigningKeys({"orders": GroupKeys(sign_with="new", keys={"old": OLD, "new": NEW})})
    identity = orphan(place, rotated)
    checked(lambda: parked(place))
    ((code, entry),) = parked(place)
    assert code == "UNSIGNED"
    with pytest.raises(TransactionStateError, match="add its key to signing_keys"):
        Operator(place.open(), "orders").resume(entry, "the key was late")
    Operator(place.open(rotated), "orders").resume(entry, "the key was late")
    checked(place.sent, keys=rotated)
    assert [b"genuine"] == place.sent()
    assert identity != entry


def test_parked_half_stays_listed_when_its_group_begins_to_refuse(place, checked):
    """What was parked without a signature is shown as UNSIGNED, never hidden; accepted again, it can be resumed."""
    lenient = SigningKeys({"orders": GroupKeys(sign_with="old", keys={"old": OLD}, accepts_unsigned=True)})
    identity = place.half(check_max=1)
    checked(lambda: parked(place, lenient), keys=SigningKeys({}), answer=LocalTransactionState.UNKNOWN)
    assert [("CHECKS_EXHAUSTED", identity)] == parked(place, lenient)
    assert [("UNSIGNED", identity)] == parked(place)
    Operator(place.open(lenient), "orders").resume(identity, "the service knows again")
    checked(place.sent, keys=lenient)


def test_connect_takes_the_keys_of_a_file(tmp_path):
    """The URL's option is enough: a second process with the keys reads, one without them does not."""
    path = tmp_path / "keys.toml"
    secret = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    path.write_text(f'[groups.orders]\nsign_with = "a"\nkeys = {{ a = "{secret}" }}', encoding="utf-8")
    url = f"sqlite:///{tmp_path}/broker.db"
    with connect(f"{url}?signing_keys={path}") as signed, connect(url) as plain:
        signed.ensure_group("orders", 1).result(10)
        with TransactionProducer(signed, "orders", listener=Answers(LocalTransactionState.COMMIT)) as producer:
            producer.send_message_in_transaction(Message("sent", b"x"))
        (own,) = signed.read("orders", LogKind.HALF, 0).read(10)
        (raw,) = plain.read("orders", LogKind.HALF, 0).read(10)
        assert wire.decode_half(own.body).group == "orders"
        assert decode_signed(raw.body).key == "a"
