"""`txcore topics` and `txcore fence`: the objects of a group are made, verified, described, counted, pruned."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest
from txcore_conformance.kit import Kit

from txcore import ids
from txcore.cli.operating import fences, topics
from txcore.fence import FenceAnswer
from txcore.ids import id_text
from txcore.operator.operator import Operator

DAY_MS = 86_400_000


def squeezed(text: str) -> str:
    """Return the text on one line."""
    return " ".join(text.split())


class TestTopics:
    def test_create_makes_the_group_once(self, world):
        """A second `create` verifies the group, and refuses another number of partitions."""
        place = ["--broker", world.broker_url, "--group", f"{world.kit.group}-new"]
        ran = world.here("topics", "create", "--partitions", "3", *place)
        assert (ran.status, ran.errors) == (0, "")
        assert ran.output == f"group {world.kit.group}-new is as it should be: 3 partitions\n"
        assert world.here("topics", "create", *place).output == ran.output
        other = world.here("topics", "create", "--partitions", "4", *place)
        assert other.status == 1
        assert "is not as it should be" in other.sentence

    def test_create_makes_a_broker_file(self, txcore, tmp_path):
        """Only `topics create` creates a broker file."""
        place = ["--broker", "sqlite:///new.db", "--group", "orders"]
        assert "there is no broker file new.db" in txcore("topics", "verify", *place).sentence
        assert txcore("topics", "create", *place).status == 0
        assert (tmp_path / "new.db").exists()
        assert "as it should be" in txcore("topics", "verify", *place).output

    def test_verify_reads_every_log_and_makes_nothing(self, world):
        """`verify` does not create a group that is missing."""
        assert world.json("topics", "verify") == {"group": world.kit.group, "exists": True, "partitions": 2}
        place = ["--broker", world.broker_url, "--group", "unused"]
        for _ in range(2):
            ran = world.here("topics", "verify", *place)
            assert (ran.status, "has no group 'unused'" in ran.sentence) == (2, True)

    def test_describe_names_the_objects_of_a_group(self, world):
        """`describe` also works before the group exists, and does not create it."""
        ran = world("topics", "describe")
        assert (ran.status, ran.errors) == (0, "")
        assert squeezed(ran.output).startswith(f"group {world.kit.group} exists, with 2 partitions")
        place = ["--broker", world.broker_url, "--group", "unused"]
        ran = world.here("topics", "describe", "--partitions", "2", *place)
        assert squeezed(ran.output).startswith("group unused does not exist yet")
        assert "halves" in ran.output
        assert world.here("topics", "verify", *place).status == 2
        shown = world.json("topics", "describe")
        assert (shown["exists"], shown["partitions"]) == (True, 2)
        assert {"kind", "name", "settings", "purpose"} == set(shown["objects"][0])


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("sqlite:///broker.db", ["half", "parked"]),
        ("kafka://host:9092", ["txc.orders.half", "txc.orders.op", "txc.orders.parked", "txc.orders.checkpoint"]),
        ("rabbitmq://host", ["txc.orders.half.1", "txc.orders.claim.1", "txc.orders.logs", "txc.orders.members"]),
        ("nats://host", ["txc_orders_half", "txc_orders_op", "txc_orders_parked", "KV_txc_orders"]),
        ("nats://host?release=atomic&stream=ORDERS", ["txc_orders_half", "ORDERS", "KV_txc_orders"]),
        ("memory://shop", ["half log of partition 1"]),
    ],
)
def test_each_backend_names_its_objects_without_a_server(url, names):
    """The description needs no server, and has the facts to create everything by hand."""
    objects = {each.name: each for each in topics.objects_of(url, "orders", 2)}
    assert [name for name in names if name not in objects] == []
    assert all(each.kind and each.purpose for each in objects.values())
    if "half" not in objects and not url.startswith("memory"):
        half = next(each for name, each in objects.items() if "half" in name)
        assert half.settings


class TestFence:
    def test_create_makes_the_tables_once(self, world):
        """`fence create` also makes a new database; a repetition is harmless."""
        database = ["--database", f"sqlite:///{world.folder / 'new.db'}", "--table", "shop_fence"]
        for _ in range(2):
            ran = world.here("fence", "create", *database)
            assert (ran.status, ran.errors) == (0, "")
            assert ran.output == "tables shop_fence and shop_fence_meta exist\n"
        assert world.here("fence", "stats", *database).output == (
            "0 rows in shop_fence, the oldest of none\nhorizon: never pruned\n"
        )

    def test_identity_is_shown_and_another_one_is_adopted_once(self, world):
        """`fence adopt` starts with a dry run; with --yes the fence keeps the operator and the reason."""
        database = ["--database", world.database_url]
        mine, former = world.fence.identity().current.hex(), "ab" * 16
        assert world.here("fence", "identity", *database).output == f"identity: {mine}\n"
        asked = ["fence", "adopt", *database, "--reason", "moved", "--former", former, "--by", "anna"]
        assert "dry run" in world.here(*asked).output
        assert json.loads(world.here(*asked, "--json").output)["dry_run"]
        assert world.fence.identity().adopted == ()
        ran = world.here(*asked, "--yes")
        assert (ran.status, ran.errors) == (0, "")
        (kept,) = world.fence.identity().adopted
        assert (kept.identity, kept.by, kept.reason) == (former, "anna", "moved")
        nothing = world.here("fence", "adopt", *database, "--reason", "moved", "--yes")
        assert (nothing.status, "nothing to adopt" in nothing.errors) == (2, True)
        wrong = world.here("fence", "adopt", *database, "--reason", "moved", "--former", "xyz", "--yes")
        assert (wrong.status, "32 hexadecimal digits" in wrong.errors) == (2, True)

    def test_stats_count_by_group_and_state(self, world):
        """`fence stats` needs no broker."""
        world.fenced("commit")
        world.fence.check([b"\xff" * 16], "billing")
        database = ["--database", world.database_url]
        ran = world.here("fence", "stats", *database)
        assert (ran.status, ran.errors) == (0, "")
        lines = [line.split() for line in ran.output.splitlines()]
        assert ["billing", "0", "1", "0", "0", "1"] in lines
        assert [world.kit.group, "1", "0", "0", "0", "1"] in lines
        assert ran.width <= 80
        shown = world.json("fence", "stats")
        assert shown["states"] == {"committed": 1, "rolled_back": 1, "via_table": 0, "forced": 0}
        assert shown["groups"]["billing"]["rolled_back"] == 1
        assert shown["horizon"] is None

    @pytest.mark.parametrize(
        ("arguments", "words", "status"),
        [
            (["stats"], "say where: give --database, or --config FILE", 2),
            (["stats", "--database", "sqlite:///nope.db"], "there is no database file nope.db", 2),
            (["stats", "--database", "postgresql+psycopg://u:hidden@127.0.0.1:1/d"], "the fence's database: ", 1),
            (["stats", "--database", "sqlite:///x.db", "--table", "a;b"], "is not a plain table name", 2),
            (["create", "--database", "postgresql+psycopg://u:hidden@127.0.0.1:1/d"], "the fence's database: ", 1),
            (["prune", "--older-than", "5m"], "--older-than must be at least 1h", 2),
            (["prune", "--older-than", "2"], "--older-than takes a duration", 2),
        ],
    )
    def test_mistakes_are_one_sentence(self, txcore, tmp_path, arguments, words, status):
        """The command prints one sentence, without the database's password."""
        (tmp_path / "x.db").touch()
        ran = txcore("fence", *arguments)
        assert words in ran.sentence
        assert "hidden" not in ran.sentence
        assert (ran.status, ran.output) == (status, "")


class TestPrune:
    @pytest.fixture
    def old(self, world, monkeypatch):
        """Return a function that makes all transactions two days old; the prune does not wait for producers."""
        monkeypatch.setattr("txcore.sqlfence.runners.time", SimpleNamespace(sleep=lambda seconds: None))

        def age() -> None:
            now_ms = time.time_ns() // 1_000_000
            monkeypatch.setattr(fences, "now_ms", lambda: now_ms + 2 * DAY_MS)

        return age

    def finished(self, world) -> str:
        """Make a fenced transaction whose end is in the log."""
        identity = world.fenced("commit")
        world.sweep_fenced(lambda: world.journey(identity).final)
        return identity

    def states(self, world) -> dict:
        return dict(world.fence.stats().states)

    def test_a_dry_run_counts_and_deletes_nothing(self, world, old):
        """The dry run does not raise the horizon either."""
        self.finished(world)
        self.finished(world)
        old()
        ran = world("fence", "prune", "--older-than", "1d")
        assert (ran.status, ran.errors) == (0, "")
        assert "2 rows would be deleted, 0 stay" in ran.output
        assert "dry run, nothing was done; add --yes to do it" in ran.output
        assert self.states(world) == {1: 2}
        assert world.fence.stats().pruned_below == bytes(16)

    def test_prune_deletes_only_finished_transactions(self, world, old):
        """The prune keeps a row whose end is in no log, and raises the horizon to the requested age."""
        self.finished(world)
        world.fence.check([ids.first_id_at(1)], world.kit.group)
        old()
        shown = world.json("fence", "prune", "--older-than", "1d", "--yes", "--wait", "10.5")
        assert (shown["deleted"], shown["kept"], shown["dry_run"], shown["bound_by"]) == (1, 1, False, None)
        assert self.states(world) == {2: 1}
        assert ids.born_ms(world.fence.stats().pruned_below) == pytest.approx(time.time() * 1000 + DAY_MS, abs=600_000)

    def test_horizon_never_rises_above_an_undecided_transaction(self, world, old):
        """A pending or parked half keeps its answer; the output names the half that limits the horizon."""
        done = self.finished(world)
        parked = world.parked()
        pending = world.fenced("commit")
        old()
        shown = world.json("fence", "prune", "--older-than", "1d")
        assert shown["bound_by"] == f"{parked} of group {world.kit.group} is undecided"
        assert (shown["closed"], shown["kept"]) == (1, 0)
        assert world.json("rollback", parked, "--yes", "--why", "x", "--wait", "0")[0]["result"] == "requested"
        world.sweep_once_forced(parked)
        ran = world("fence", "prune", "--older-than", "1d", "--yes", "--wait", "10.5")
        assert f"the horizon stops early, as {pending}" in squeezed(ran.output)
        assert "1 row deleted" in ran.output
        readings = world.fence.peek([bytes.fromhex(each.replace("-", "")) for each in (done, pending)])
        assert [each.answer for each in readings.values()] == [FenceAnswer.PRUNED, FenceAnswer.COMMIT]

    def test_half_that_is_resumed_between_the_reads_holds_the_horizon_down(self, world, old, monkeypatch):
        """The read that shows whether an entry is still parked also shows that it is pending again."""
        parked = world.parked()
        old()
        read = Operator.watch

        def watch(operator, *arguments, **options):
            with monkeypatch.context() as patch:
                patch.setattr(Operator, "watch", read)
                if world.journey(parked).is_parked:
                    world.kit.operator().resume(bytes.fromhex(parked.replace("-", "")), "now")
            return read(operator, *arguments, **options)

        monkeypatch.setattr(Operator, "watch", watch)
        shown = world.json("fence", "prune", "--older-than", "1d")
        assert world.journey(parked).is_pending
        assert shown["bound_by"] == f"{parked} of group {world.kit.group} is undecided"

    def test_every_group_of_the_table_must_be_named(self, world, old):
        """The command requires each group, because the horizon is the table's and would rise for the others too."""
        world.fence.check([ids.first_id_at(1)], "billing")
        ran = world("fence", "prune", "--older-than", "1d")
        assert "the table holds rows of billing too" in ran.sentence
        assert ran.status == 2
        ran = world("fence", "prune", "--older-than", "1d", "--also-group", "billing")
        assert "this broker has no group 'billing'" in ran.sentence
        ran = world("fence", "prune", "--older-than", "1d", "--ignore-group", "billing")
        assert (ran.status, "0 rows would be deleted, 1 stay" in squeezed(ran.output)) == (0, True)

    def test_another_group_of_the_table_holds_the_horizon_down_too(self, world, old, kit):
        """The prune also reads the logs of the other group, whose undecided half limits the horizon."""
        other = Kit(kit.harness, f"{kit.group}-2")
        try:
            other.topic()
            identity = other.orphan(world.message()).transaction_id
            world.fence.check([ids.first_id_at(1)], other.group)
            old()
            shown = world.json("fence", "prune", "--older-than", "1d", "--also-group", other.group)
            assert shown["bound_by"] == f"{id_text(identity)} of group {other.group} is undecided"
        finally:
            other.close()

    def test_a_prune_needs_broker_group_and_database(self, world):
        """A prune requires all three, because it reads the ends in the logs."""
        ran = world.here("fence", "prune", "--older-than", "1d", *world.place[:4])
        assert ran.sentence == "a prune needs the fence's database: --database URL, or `database` in the file"
        ran = world.here("fence", "prune", "--older-than", "1d", *world.place[4:])
        assert "say where: give --broker and --group" in ran.sentence
