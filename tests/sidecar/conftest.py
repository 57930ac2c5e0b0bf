"""Shared parts of the sidecar's tests: a hand-driven clock, a scripted callback server, orphaned halves, and the
checker as a process of its own.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from txcore_conformance import servers
from txcore_conformance.kit import hasty, wait_until
from txcore_conformance.machine import wait_until_stopped
from txcore_conformance.required import obtained
from txcore_sqlite.consumer import read_topic

import txcore
from txcore.config import load
from txcore.ids import id_text
from txcore.sidecar.process import Sidecar
from txcore.sidecar.web.app import make_app
from txcore.sidecar.web.guard import Guard
from txcore.sidecar.web.server import WebServer
from txcore.sidecar.web.tokens import Token

DEADLINE_S = 60.0
TOPIC = "orders.created"


class HandClock:
    """A clock that stops until it is advanced."""

    def __init__(self):
        self.now_s = 1_000.0

    def wall_ms(self):
        return 1_700_000_000_000 + round(self.now_s * 1000)

    def elapsed_s(self):
        return self.now_s

    def boot_id(self):
        return "boot"

    def advance(self, seconds):
        self.now_s += seconds


class NoJitter:
    """A random source that returns only zeros."""

    def getrandbits(self, k):
        return 0


@dataclass
class Asked:
    """One request that the callback server received."""

    method: str
    headers: dict[str, str]
    body: bytes

    @property
    def half(self):
        return json.loads(self.body)


@dataclass
class CallbackServer:
    """A server that answers each request by `answer(asked) -> (status, headers, body)`."""

    answer: Callable[[Asked], tuple[int, dict[str, str], bytes]] = lambda _: (200, {}, b'{"state": "COMMIT"}')
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    _server: ThreadingHTTPServer | None = None

    def start(self, port=0, context=None):
        parent = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                asked = Asked(self.command, {key.lower(): value for key, value in self.headers.items()}, body)
                parent.asked.append(asked)
                status, headers, content = parent.answer(asked)
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                try:
                    self.wfile.write(content)
                except OSError:
                    self.close_connection = True

            do_OPTIONS = do_POST  # noqa: N815 - the name that http.server looks for

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request, client_address):
                pass

        self._server = Server(("127.0.0.1", port), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self._server.server_port}/check"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def stop(self):
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class Shop:
    """A broker file, a database file with a fence, and the open halves of a crashed producer."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.broker_file, self.database_file = folder / "broker.db", folder / "shop.db"
        self.broker_url, self.database_url = f"sqlite:///{self.broker_file}", f"sqlite:///{self.database_file}"
        self.backend = txcore.connect(self.broker_url)
        self.engines = []
        self.use_database(self.database_url)

    def use_database(self, url):
        """Keep the fence in the database at *url* from now on."""
        self.engine = create_engine(url)
        self.engines.append(self.engine)
        self.fence = txcore.SqlFence(self.engine)
        self.fence.create()

    def orphans(self, count, *, group="orders", fenced=True, immunity_s=0.01, committed=lambda number: number % 2 == 0):
        """Leave *count* halves without an end, and return the ids, by whether their transaction committed."""
        policy = txcore.CheckPolicy(immunity_s=immunity_s)
        producer = txcore.TransactionProducer(
            hasty(self.backend), group, fence=self.fence, policy=policy, partition_count=2
        )
        found = {True: set(), False: set()}
        for number in range(count):
            transaction = producer.begin()
            transaction.publish(txcore.Message(TOPIC, b"%d" % number, key=b"k"))
            if fenced:
                with self.engine.connect() as connection:
                    transaction.prepare(connection)
                    connection.commit() if committed(number) else connection.rollback()
            else:
                transaction.prepare()
            found[bool(committed(number))].add(id_text(transaction.transaction_id))
        producer.close()
        return found

    def is_writable(self):
        """Return whether no process holds a lock on either file for long; without WAL, a reader's lock counts too."""
        for file in (self.broker_file, self.database_file):
            connection = sqlite3.connect(file, timeout=1.0, isolation_level=None)
            try:
                connection.execute("BEGIN EXCLUSIVE")
                connection.execute("ROLLBACK")
            except sqlite3.OperationalError:
                return False
            finally:
                connection.close()
        return True

    def delivered(self):
        """Return the transaction ids of the delivered messages, one id per message."""
        return [str(each.headers["txcore-id"]).partition(":")[0] for each in read_topic(self.broker_file, TOPIC)]

    def close(self):
        self.backend.close().result(10)
        for engine in self.engines:
            engine.dispose()


@dataclass
class Running:
    """A `txcore checker` process."""

    process: subprocess.Popen
    log: Path

    @property
    def url(self):
        return wait_until(lambda: re.search(r"http(?:=|\": \")(http://[^\s\"]+)", self.text), "the address").group(1)

    @property
    def text(self):
        return self.log.read_text()

    def get(self, path, **headers):
        """Return the status and the body of the answer."""
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def is_ready(self):
        """Return whether `/readyz` answers with status 200."""
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def metric(self, name, **labels):
        """Return the sum of a metric over the samples that have *labels*."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.split()[-1])
            for line in self.get("/metrics")[1].splitlines()
            if re.match(rf"{name}[{{ ]", line) and all(each in line for each in wanted)
        )

    def signal(self, number):
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            wait_until_stopped([self.process.pid])

    def cpu_s(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait(self, timeout_s=DEADLINE_S):
        return self.process.wait(timeout_s)

    def stop(self):
        """Stop the process with SIGTERM and return its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()


class Checkers:
    """Starts checker processes in a folder, and ends all of them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._running = []

    def __call__(self, *arguments, environment=None, files_max=0):
        """Start a checker; *files_max* limits its open files."""

        def limit():
            if files_max:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))

        log = self.folder / f"checker-{len(self._running)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "txcore.cli", "checker", "--set", "http.port=0", *arguments],
                cwd=self.folder,
                env={**os.environ, **(environment or {})},
                stdout=output,
                stderr=output,
                preexec_fn=limit,  # noqa: PLW1509 - no thread of the tests runs between fork and exec
            )
        self._running.append(Running(process, log))
        return self._running[-1]

    def ready(self, *arguments, **settings):
        """Start a checker and wait until it is ready."""
        running = self(*arguments, **settings)
        wait_until(lambda: running.is_ready() or running.process.poll() is not None, "readiness")
        assert running.process.poll() is None, running.text
        return running

    def close(self):
        for running in self._running:
            if running.process.poll() is None:
                running.process.kill()
                running.process.wait()


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def callback_server():
    server = CallbackServer()
    yield server
    server.stop()


@pytest.fixture
def shop(tmp_path):
    shop = Shop(tmp_path)
    yield shop
    shop.close()


@pytest.fixture
def checkers(tmp_path):
    checkers = Checkers(tmp_path)
    yield checkers
    checkers.close()


@pytest.fixture(name="wait_until")
def waiting():
    return wait_until


@pytest.fixture
def no_jitter():
    return NoJitter()


@pytest.fixture
def make_callback_server():
    """Start callback servers; the settings choose the port and the TLS context."""
    servers = []

    def make(**settings):
        servers.append(CallbackServer().start(**settings))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def postgresql():
    """A PostgreSQL server for this test alone, which the test may kill."""
    server = obtained("postgresql", servers.postgresql)
    yield server
    server.remove()


@dataclass(frozen=True)
class Answer:
    """The answer of the server."""

    status_code: int
    headers: dict[str, str]
    text: str

    def json(self):
        return json.loads(self.text)


class Client:
    """Sends requests to its own server, byte for byte as given."""

    def __init__(self, app, **settings):
        self._server = WebServer("127.0.0.1", 0, **settings)
        self._server.start(app)
        self.url = self._server.url
        self._address = self.url.removeprefix("http://")

    def request(self, method, path, headers=None, content=None):
        connection = http.client.HTTPConnection(self._address, timeout=10)
        try:
            connection.request(method, path, content, dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read().decode())
        finally:
            connection.close()

    def get(self, path, headers=None):
        return self.request("GET", path, headers)

    def post(self, path, content, headers=None):
        return self.request("POST", path, headers, content)

    def close(self):
        self._server.stop()


@dataclass
class Served:
    """A sidecar over a shop, its application, and a client."""

    sidecar: Sidecar
    shop: object
    clients: list = field(default_factory=list)
    clock: object = None

    def client(self, token="", more=()):
        """Return a client of an endpoint that is protected by *token*: an operator's, or several of any kind."""
        tokens = token if isinstance(token, list) else [Token(token)] if token else []
        self.clients.append(Client(make_app(self.sidecar, Guard(tokens, self.clock), more)))
        return self.clients[-1]

    def get(self, path, **headers):
        client = self.clients[0] if self.clients else self.client()
        return client.get(path, headers)


@pytest.fixture
def served(shop, wait_until):
    (shop.folder / "txcore.toml").write_text(
        f'[backends.main]\nurl = "{shop.broker_url}"\n[databases.shop]\nurl = "{shop.database_url}"\n'
        '[groups.orders]\ndatabase = "shop"\npartitions = 2\nlimits.idle_poll_s = 0.01\npolicy.immunity_s = 600\n'
    )
    sidecar = Sidecar(load(shop.folder / "txcore.toml", environment={}))
    served = Served(sidecar, shop)
    sidecar.start()
    wait_until(lambda: len(sidecar.status()["orders"].checker.partitions) == 2, "ownership")
    yield served
    assert sidecar.stop()
    for client in served.clients:
        client.close()


@pytest.fixture
def make_client():
    """Make clients, each with a server for the given application and with the settings of `WebServer`."""
    clients = []

    def make(app, **settings):
        clients.append(Client(app, **settings))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
