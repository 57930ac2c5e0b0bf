"""Durable clusters on loopback: three nodes that keep acknowledged records when one of them is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from txcore_conformance.brokers.broker import ManagedBroker
from txcore_conformance.server_packages import ServerUnavailableError


class Cluster:
    """Nodes of one cluster.

    Attributes:
        name: kafka, rabbitmq or nats.
        nodes: The nodes; each may be killed, paused and started again by itself.
        url: txcore URL that names every node, separated by commas.
    """

    def __init__(self, nodes: Sequence[ManagedBroker]) -> None:
        self.nodes = list(nodes)
        self.name = nodes[0].name

    @property
    def version(self) -> str:
        """Version of its first node."""
        return self.nodes[0].version

    @property
    def url(self) -> str:
        """URL of all nodes."""
        return _joined([node.url for node in self.nodes])

    @property
    def proxied_url(self) -> str:
        """URL of all nodes through their proxies."""
        return _joined([node.proxied_url for node in self.nodes])

    def start(self) -> None:
        """Start the nodes that do not run, all at once, and wait until each answers.

        Raises:
            ServerUnavailableError: one of them does not start.
        """
        _all([node.start for node in self.nodes if not node.is_running])

    def kill(self) -> None:
        """Kill all nodes, as in a power failure."""
        for node in self.nodes:
            node.pause()
        for node in self.nodes:
            node.kill()

    def remove(self) -> None:
        """End all nodes at once and delete their data."""
        for node in self.nodes:
            node.pause()  # so that no node waits for another one
        for node in self.nodes:
            node.remove()


def start_cluster(make: Callable[[], ManagedBroker], count: int) -> Cluster:
    """Make a cluster of *count* nodes and start it.

    Raises:
        ServerUnavailableError: the cluster is not available here.
    """
    nodes: list[ManagedBroker] = []
    try:
        for _ in range(count):
            nodes.append(make())
            nodes[-1].prepare()
        type(nodes[0]).join(nodes)
        cluster = Cluster(nodes)
        cluster.start()
    except BaseException:
        for node in nodes:
            node.remove()
        raise
    return cluster


def _all(calls: Sequence[Callable[[], None]]) -> None:
    if not calls:
        return
    with ThreadPoolExecutor(len(calls)) as threads:
        futures = [threads.submit(call) for call in calls]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in errors:
        if not isinstance(error, ServerUnavailableError):
            raise error
    if errors:
        raise errors[0]


def _joined(urls: Sequence[str]) -> str:
    """Return one URL with the hosts of all."""
    scheme, _, rest = urls[0].partition("://")
    account, at, _ = rest.rpartition("@")
    hosts = [url.partition("://")[2].rpartition("@")[2].rstrip("/") for url in urls]
    tail = "/" if urls[0].endswith("/") else ""
    return f"{scheme}://{account}{at}{','.join(hosts)}{tail}"
