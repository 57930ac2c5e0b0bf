"""The endpoint's connections: idle, slow and many clients without a token delay neither health nor checking."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import resource
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from txcore_conformance.brokers.security import make_certificates

from txcore.sidecar.web import connections
from txcore.sidecar.web.app import make_app
from txcore.sidecar.web.guard import ANSWERS_MAX, Guard
from txcore.sidecar.web.server import WebServer

OPEN_PATHS = ("/healthz", "/readyz", "/metrics")
LOG_LINES_MAX = 200
PART_OF_A_HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-a: "
HEAD_OF_A_FORM = (
    b"POST /console/sign-in HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 60000\r\n\r\n"
)


@pytest.fixture
def hold():
    """Open connections and keep them, each after it has sent *sent*; a refused one is not kept."""
    with contextlib.ExitStack() as closing:

        def opened(url, count, sent=b""):
            found = []
            for _ in range(count):
                with contextlib.suppress(OSError):
                    found.append(closing.enter_context(socket.create_connection(address_of(url), timeout=5)))
                    found[-1].sendall(sent)
            return found

        yield opened


@pytest.fixture
def running(shop, checkers):
    """A checker process of one fenced group."""
    configure(shop)
    return checkers.ready()


def configure(shop, text=""):
    (shop.folder / "txcore.toml").write_text(
        f'[backends.main]\nurl = "{shop.broker_url}"\n[databases.shop]\nurl = "{shop.database_url}"\n'
        f'[groups.orders]\ndatabase = "shop"\npartitions = 2\nlimits.idle_poll_s = 0.02\n{text}'
    )


def address_of(url):
    host, _, port = url.rpartition("//")[2].rpartition(":")
    return host, int(port)


def statuses(running):
    return [running.get(path)[0] for path in OPEN_PATHS]


def files_of(running):
    return len(list(Path(f"/proc/{running.process.pid}/fd").iterdir()))


def sockets_of(running):
    """Return the number of the process's sockets; files of databases come and go beside them."""
    found = 0
    for each in Path(f"/proc/{running.process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found += str(each.readlink()).startswith("socket:")
    return found


def is_closed(connection):
    """Return whether the server has closed the connection; what it sent before is thrown away."""
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.mark.parametrize("sent", [b"", PART_OF_A_HEAD, HEAD_OF_A_FORM], ids=["idle", "slow head", "slow body"])
def test_incomplete_requests_do_not_delay_health(running, hold, sent):
    """Three times as many connections as may be open are made; each open path is answered, files stay bounded."""
    before = files_of(running)
    assert 3 * connections.CONNECTIONS_MAX == len(hold(running.url, 3 * connections.CONNECTIONS_MAX, sent))
    for _ in range(5):
        assert [200, 200, 200] == statuses(running)
    assert before + connections.CONNECTIONS_MAX + 10 > files_of(running)
    assert 1 == running.text.count("http.connections_dropped")
    assert "Traceback" not in running.text


@pytest.mark.parametrize(
    ("sent", "limit_s"),
    [(PART_OF_A_HEAD, connections.HEAD_S), (HEAD_OF_A_FORM, connections.BODY_S)],
    ids=["head", "body"],
)
def test_a_slow_request_is_closed_in_time(running, hold, wait_until, sent, limit_s):
    """A byte now and then does not prolong the time that a head or a body may take."""
    (connection,) = hold(running.url, 1, sent)
    began_s = time.monotonic()

    def is_over():
        with contextlib.suppress(OSError):
            connection.send(b"b")
        return is_closed(connection)

    wait_until(is_over, "the end of the connection", 4 * limit_s)
    assert time.monotonic() - began_s > 0.8 * limit_s
    assert "Traceback" not in running.text


def test_a_client_that_leaves_within_a_body_is_no_error(running, hold, wait_until):
    """The log has no traceback of it."""
    before = sockets_of(running)
    for connection in hold(running.url, 10, HEAD_OF_A_FORM):
        connection.close()
    wait_until(lambda: sockets_of(running) <= before, "the end of the connections")
    assert 0 == running.stop()
    assert "Traceback" not in running.text


@contextlib.contextmanager
def flooded(address, sent):
    """Make connections all the time in two threads, each of which holds 200; yields their counts."""
    is_over, counts = threading.Event(), [0, 0]

    def flood(number):
        held = []
        while not is_over.is_set():
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(address, timeout=1))
                held[-1].sendall(sent)
                counts[number] += 1
            if len(held) >= 200:
                held.pop(0).close()
        for connection in held:
            connection.close()

    floods = [threading.Thread(target=flood, args=(number,)) for number in range(len(counts))]
    for each in floods:
        each.start()
    try:
        yield counts
    finally:
        is_over.set()
        for each in floods:
            each.join()


@pytest.mark.parametrize("sent", [b"", b"GET /he"])
def test_a_flood_of_connections_delays_neither_health_nor_checking(shop, running, wait_until, sent):
    """While clients reconnect all the time, every open path is answered and orphans are judged."""
    with flooded(address_of(running.url), sent) as counts:
        wait_until(lambda: sum(counts) > 1_000, "a thousand connections")
        ids = shop.orphans(6)
        for _ in range(10):
            assert [200, 200, 200] == statuses(running)
        wait_until(lambda: ids[True] <= set(shop.delivered()), "the committed orphans")
        wait_until(lambda: sum(counts) > 5_000, "five thousand connections")
        assert [200, 200, 200] == statuses(running)
    assert 0 == running.stop()
    assert LOG_LINES_MAX > len(running.text.splitlines())


def test_a_slow_client_is_not_replaced_before_it_has_sent_its_request(running, wait_until):
    """On a busy machine a probe may lose the processor between its connection and its request."""
    address = address_of(running.url)
    with flooded(address, b"GET /he") as counts:
        wait_until(lambda: sum(counts) > 500, "a full house")
        answered = 0
        while answered < 20:
            began_s = time.monotonic()
            with socket.create_connection(address, timeout=10) as probe:
                time.sleep(connections.GRACE_S / 2)  # the probe has no processor
                probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
                was_in_time = time.monotonic() - began_s < connections.GRACE_S  # else the test itself had none
                found = b""
                with contextlib.suppress(ConnectionError):
                    found = probe.recv(100)
            assert found.startswith(b"HTTP/1.1 200") or not was_in_time
            answered += was_in_time


def test_a_request_that_is_not_read_yet_is_not_replaced(wait_until):
    """A request that waits to be read is not replaced by connections which the loop sees in the same turn."""
    is_stalled, may_go = threading.Event(), threading.Event()

    async def stall(_):
        is_stalled.set()
        may_go.wait(30)
        return Response()

    async def answer(_):
        time.sleep(connections.GRACE_S / 20)  # noqa: ASYNC251 - a busy machine: a turn of the loop takes seconds
        return Response()

    server = WebServer("127.0.0.1", 0, "", "")
    server.start(Starlette(routes=[Route("/stall", stall), Route("/", answer)]))
    request = b"GET %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    with contextlib.ExitStack() as closing:

        def opened():
            return closing.enter_context(socket.create_connection(address_of(server.url), timeout=10))

        try:
            *probes, stalling = [opened() for _ in range(connections.CONNECTIONS_MAX)]
            over_s = time.monotonic() + 2 * connections.GRACE_S
            wait_until(lambda: time.monotonic() > over_s, "the time from which new connections replace these")
            stalling.sendall(request % b"/stall")
            assert is_stalled.wait(10)
            late = [opened() for _ in range(connections.CONNECTIONS_MAX // connections.ACCEPTED_PART)]
            asking = [*probes, *late]
            for probe in asking:
                probe.sendall(request % b"/")
            may_go.set()
            assert [b"HTTP/1.1 200"] * len(asking) == [probe.recv(12) for probe in asking]
        finally:
            may_go.set()
            server.stop()


def test_a_connection_waits_while_all_others_are_answered(wait_until):
    """A connection that comes while each place has a request under way is answered after these, and not closed."""
    may_answer, begun = threading.Event(), []

    async def answer(_):
        begun.append(1)
        await asyncio.to_thread(may_answer.wait, 20)
        return Response()

    server = WebServer("127.0.0.1", 0, "", "")
    server.start(Starlette(routes=[Route("/", answer)]))
    request = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    with contextlib.ExitStack() as closing:

        def sent():
            probe = closing.enter_context(socket.create_connection(address_of(server.url), timeout=10))
            probe.sendall(request)
            return probe

        try:
            probes = [sent() for _ in range(connections.CONNECTIONS_MAX)]
            wait_until(lambda: len(begun) == len(probes), "the requests of all places")
            late = sent()
            late.settimeout(3 * connections.GRACE_S)
            with pytest.raises(TimeoutError):
                late.recv(12)
            late.settimeout(10)
            may_answer.set()
            assert [b"HTTP/1.1 200"] * (len(probes) + 1) == [probe.recv(12) for probe in [*probes, late]]
        finally:
            may_answer.set()
            server.stop()


def test_few_files_are_enough(shop, checkers, hold, wait_until):
    """With a limit of 256 open files and 400 connections, orphans are judged and the log stays short."""
    configure(shop)
    running = checkers.ready(files_max=256)
    hold(running.url, 400)
    ids = shop.orphans(6)
    wait_until(lambda: ids[True] <= set(shop.delivered()), "the committed orphans")
    assert [200, 200, 200] == statuses(running)
    assert 0 == running.stop()
    assert LOG_LINES_MAX > len(running.text.splitlines())


def test_connections_take_a_part_of_the_files(monkeypatch):
    """A limit of open files bounds them; without one they have their own bound."""
    for limit, expected in ((256, 64), (1 << 20, 100), (resource.RLIM_INFINITY, 100), (3, 1)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert expected == connections.connections_max()


def test_handshakes_are_bounded_too(served, tmp_path, hold, wait_until):
    """Connections that never begin TLS are replaced, and closed after the time of a head."""
    certificates = make_certificates(tmp_path / "certificates")
    server = WebServer("127.0.0.1", 0, str(certificates.cert_file("server")), str(certificates.key_file("server")))
    server.start(make_app(served.sidecar, Guard()))
    context = ssl.create_default_context(cafile=str(certificates.ca_file))
    try:
        silent = hold(server.url, 150)
        for _ in range(5):
            assert 200 == status_of(server.url, "/healthz", context)
        assert 50 <= sum(map(is_closed, silent))
        wait_until(lambda: all(map(is_closed, silent)), "the end of all", 4 * connections.HEAD_S)
        assert 200 == status_of(server.url, "/healthz", context)
    finally:
        server.stop()


def status_of(url, path, context=None):
    host, port = address_of(url)
    kind = http.client.HTTPConnection if context is None else http.client.HTTPSConnection
    connection = kind(host, port, timeout=10, **({} if context is None else {"context": context}))
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_requests_that_wait_do_not_delay_health(served, wait_until):
    """While as many requests wait as may be answered at once, others are refused and health is answered."""
    may_end, waiting = threading.Event(), []

    def wait(_):
        waiting.append(1)
        may_end.wait(30)
        return Response()

    client = served.client(more=[Route("/wait", wait)])
    found = []
    threads = [threading.Thread(target=lambda: found.append(client.get("/wait"))) for _ in range(ANSWERS_MAX)]
    for each in threads:
        each.start()
    try:
        wait_until(lambda: len(waiting) == ANSWERS_MAX, "all requests")
        assert 503 == client.get("/wait").status_code
        assert [200, 200, 200] == [client.get(path).status_code for path in OPEN_PATHS]
    finally:
        may_end.set()
        for each in threads:
            each.join()
    assert [200] * ANSWERS_MAX == [each.status_code for each in found]
    assert 200 == client.get("/wait").status_code
