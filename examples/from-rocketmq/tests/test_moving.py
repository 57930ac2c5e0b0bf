"""The move of a group from RocketMQ to Kafka and back, on real servers, with producers killed on both sides."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from conftest import make_topic
from moving import FOLDER, HALVES, Databases, RocketMQ, Shop
from txcore_conformance.kit import wait_until

pytest_plugins = ("conftest",)
SOLD_OUT_EACH = 5
THREADS = 8
SOME = 20


@pytest.fixture(scope="module")
def rocketmq():
    server = RocketMQ()
    yield server
    server.remove()


@pytest.fixture
def databases():
    server = Databases()
    yield server
    server.remove()


@pytest.fixture
def start(run, rocketmq, kafka, databases, tmp_path):
    """Start a program of the example by its name, with the settings that it needs."""
    places = {
        "rocketmq": {"ROCKETMQ": rocketmq.broker.endpoint, "HOME": str(tmp_path)},
        "kafka": {"BROKER": kafka},
    }

    def start_program(role, side):
        variables = places[side] | {"DATABASE": getattr(databases, role)}
        if (role, side) == ("warehouse", "kafka"):
            variables["BROKER"] = kafka.removeprefix("kafka://")
        return run("python", str(FOLDER / f"{role}_{side}.py"), **variables)

    return start_program


def orders(first, last):
    """Return lines of orders; every fifth is for what is sold out."""
    return [f"{number} {'tea' if number % SOLD_OUT_EACH else 'none'}" for number in range(first, last)]


def numbers(lines):
    return {int(line.split()[0]) for line in lines}


def txcore_says(*arguments):
    command = [sys.executable, "-m", "txcore.cli", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def ids(lines):
    """Return the orders that are not sold out, sorted."""
    return sorted(number for number in numbers(lines) if number % SOLD_OUT_EACH)


def test_a_group_moves_to_kafka_and_back(rocketmq, kafka, databases, run, start):
    """Each committed order has one parcel, and no other order has one."""

    def shop(side):
        return Shop(lambda: start("shop", side))

    def warehouse(side):
        program = start("warehouse", side)
        program.wait_for("ready")
        return program

    def parcels():
        return databases.column(databases.warehouse, "SELECT number FROM parcels")

    def ordered():
        return databases.column(databases.shop, "SELECT number FROM orders")

    # As it was: two instances on RocketMQ.
    old_a, old_b, first_warehouse = shop("rocketmq"), shop("rocketmq"), warehouse("rocketmq")
    old_a.serve(orders(0, 50))
    old_b.serve(orders(50, 100))
    wait_until(lambda: parcels() == ordered(), "the parcels of RocketMQ")

    # 1. Beside each other.
    place = ["--broker", kafka, "--group", "shop", "--database", databases.shop]
    txcore_says("fence", "create", "--database", databases.shop)
    make_topic(kafka, "orders")
    run("txcore", "checker", *place, "--set", "http.port=0")

    # 2. Consumers read both.
    new_warehouse = warehouse("kafka")

    # 3, 4. Switch, one instance after the other; each is killed while it has orders. A third one only answers checks.
    answerer, new_b = shop("rocketmq"), shop("kafka")
    unanswered = old_a.serve_until_killed(orders(100, 200), SOME)
    half_way = numbers(unanswered) & set(ordered())
    with databases.locked_orders(THREADS) as wait_for_halves:
        old_b.order(orders(201, 201 + THREADS))
        wait_for_halves()  # RocketMQ has their halves, the database has nothing
        old_b.kill()
    repeated, given_up = orders(201, 205), orders(205, 201 + THREADS)
    new_b.serve(repeated)
    assert rocketmq.left(HALVES) >= THREADS
    new_b.serve(unanswered + orders(210, 300))
    new_a = shop("kafka")
    new_b.serve(new_a.serve_until_killed(orders(300, 400), SOME))

    # 5. RocketMQ drains, by the checks that are answered.
    wait_until(lambda: rocketmq.left(HALVES) == 0, "RocketMQ's decisions", 120.0, pause_s=1.0)
    wait_until(lambda: rocketmq.left("orders") == 0, "RocketMQ's consumer", pause_s=1.0)
    assert 0 == rocketmq.given_up()
    old = [old_a, old_b, answerer]
    committed, rolled_back = ({each for one in old for each in one.checked(word)} for word in ("commit", "rollback"))
    assert committed >= set(repeated)
    assert rolled_back >= set(given_up)
    answerer.kill()
    first_warehouse.kill()
    new_b.serve(orders(400, 450))

    # The way back: RocketMQ again, while the checker finishes what was begun on Kafka.
    unanswered = new_b.serve_until_killed(orders(450, 550), SOME)
    old_warehouse = warehouse("rocketmq")
    old_a = shop("rocketmq")
    old_a.serve(unanswered + orders(550, 600))
    wait_until(lambda: json.loads(txcore_says("pending", "--json", *place)) == [], "txcore's decisions", pause_s=1.0)
    wait_until(lambda: set(parcels()) == set(ordered()), "the last parcels")
    wait_until(lambda: rocketmq.left(HALVES) == 0, "RocketMQ's last decisions", pause_s=1.0)
    wait_until(lambda: rocketmq.left("orders") == 0, "RocketMQ's consumer", pause_s=1.0)

    # Each committed order has one parcel, and no other order has one.
    assert ids(orders(0, 200) + repeated + orders(210, 600)) == ordered()
    assert ordered() == parcels()
    logs = old_warehouse.log.read_text() + new_warehouse.log.read_text() + first_warehouse.log.read_text()
    twice = re.findall(r"^repeated (.+)$", logs, re.MULTILINE)
    assert set(repeated) <= set(twice), "RocketMQ's check found the row that the other side wrote"
    own = half_way & numbers(committed)
    checked = f"{len(committed)} commits ({len(own)} for rows of the killed shop), {len(rolled_back)} rollbacks"
    print(f"\n{len(parcels())} parcels; RocketMQ's checks: {checked}; {len(twice)} repeated messages")


def test_without_a_shop_that_answers_rocketmq_gives_committed_orders_up(rocketmq, databases, start):
    """RocketMQ counts a check that no process answers; after 15 the half is gone, and its topic looks drained."""
    shop = Shop(lambda: start("shop", "rocketmq"))
    before = rocketmq.given_up()
    with databases.locked_orders(THREADS) as wait_for_halves:
        shop.order(orders(1, 1 + THREADS))
        wait_for_halves()
        rocketmq.broker.pause()
    committed = ids(orders(1, 1 + THREADS))
    wait_until(lambda: databases.column(databases.shop, "SELECT number FROM orders") == committed, "the commits")
    shop.kill()
    rocketmq.restart()  # what the shop has sent is lost
    assert rocketmq.left(HALVES) >= THREADS
    wait_until(lambda: rocketmq.left(HALVES) == 0, "the end of RocketMQ's checks", 180.0, pause_s=2.0)
    assert THREADS == rocketmq.given_up() - before
    assert 0 == rocketmq.left("orders")
