"""Three nodes on loopback: records that two of them have acknowledged outlive the third."""

from __future__ import annotations

import pytest
from txcore_conformance import brokers

pytestmark = pytest.mark.filterwarnings("default::ResourceWarning")


@pytest.mark.parametrize("name", brokers.NAMES)
def test_cluster_works_without_a_node(clustered, client, eventually, trouble, name):
    """The cluster accepts records with two nodes, and has all records after it lost power and started again."""
    cluster = clustered(name)
    try:
        assert 3 == len(cluster.url.split(","))
        made = client(name, cluster.url, copies=3, time_max_s=5)
        made.create()
        made.put("with three")
        cluster.nodes[2].kill()
        eventually(lambda: puts(made, trouble, "with two"))
        cluster.start()  # no cluster survives the loss of all nodes while one lags
        cluster.kill()
        cluster.start()
        eventually(lambda: puts(made, trouble, "again"))
        found = made.texts()
        assert ["with three", "with two", "again"] == list(dict.fromkeys(found))
    finally:
        cluster.remove()


def puts(made, trouble, text) -> bool:
    try:
        made.put(text)
    except trouble:
        return False
    return True
