import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import DataError
from shoal.data.partition.topology import check_edges, connected, neighbours, random_geometric_graph


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 30), st.floats(2.5, 6), st.integers(0, 1000))
def test_random_graphs_are_connected_with_the_wanted_degree(nodes, degree, seed):
    degree = min(degree, nodes - 1)
    try:
        edges = random_geometric_graph(nodes, degree, np.random.default_rng(seed))
    except DataError:
        assert degree < 4, "sparse graphs of many nodes may not be found connected"
        return
    assert connected(nodes, edges)
    assert len(edges) == len(set(edges)) == round(nodes * degree / 2)
    assert all(0 <= i < j < nodes for i, j in edges)
    near = neighbours(nodes, edges)
    assert all(i in near[j] for i in range(nodes) for j in near[i])
    assert edges == random_geometric_graph(nodes, degree, np.random.default_rng(seed))


def test_all_links_make_a_complete_graph():
    assert len(random_geometric_graph(5, 4, np.random.default_rng(0))) == 10


@pytest.mark.parametrize(("nodes", "degree"), [(5, 0), (5, 5), (1, 1), (10, 1)])
def test_degrees_that_cannot_be(nodes, degree):
    with pytest.raises(DataError):
        random_geometric_graph(nodes, degree, np.random.default_rng(0))


def test_edge_lists():
    assert check_edges(3, [(0, 1), (1, 2), (2, 0)]) == ((0, 1), (0, 2), (1, 2))
    with pytest.raises(DataError, match=r"link \[0, 3\]"):
        check_edges(3, [(0, 3)])
    with pytest.raises(DataError, match="two different"):
        check_edges(3, [(1, 1)])
    with pytest.raises(DataError, match="does not connect"):
        check_edges(4, [(0, 1), (2, 3)])
