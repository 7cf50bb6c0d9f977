"""The number of clusters: planted ones are found, and nothing is used that clients would not send."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from shoal.data.sets.synthetic import gaussian
from shoal.methods.clustering.client_samples import ClientSamples, Search, project, sums_over_clients
from shoal.methods.clustering.cluster_number import (
    Candidate,
    Clustering,
    choose_number,
    compare_clusterings,
    draw_half,
    find_cluster_number,
    simplified_silhouette,
)
from shoal.methods.clustering.federated_k_means import cluster_sums
from shoal.methods.contract.base import MethodError

QUICK = Search(min_clusters=2, max_clusters=7, repeats=2, starts=3)


def cluster_samples(
    clusters: int, samples: int = 60, clients: int = 4, seed: int = 0, power: float = 0.5
) -> ClientSamples:
    """Blobs in 10 dimensions dealt unevenly: every client has some clusters more than others."""
    x, y = gaussian(clusters, samples, 10, seed)
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet([power] * clients, clusters)
    owner = np.array([rng.choice(clients, p=shares[k]) for k in y])
    order = np.argsort(owner, kind="stable")
    return ClientSamples(torch.from_numpy(x[order]).double(), torch.from_numpy(owner[order]), clients)


@pytest.mark.parametrize("clusters", [3, 5])
def test_planted_clusters_are_counted(clusters: int) -> None:
    found = find_cluster_number(cluster_samples(clusters), QUICK, 0)
    assert found.clusters == clusters
    assert [each.clusters for each in found.tried] == [2, 3, 4, 5, 6, 7]


@pytest.mark.long
def test_the_same_seed_gives_the_same_curve_and_another_seed_another() -> None:
    x = cluster_samples(4)
    first, again = (find_cluster_number(x, QUICK, 0) for _ in range(2))
    assert first == again
    assert find_cluster_number(x, QUICK, 1).tried != first.tried


def test_sums_of_all_clients_at_once_are_those_of_each_by_itself() -> None:
    x = cluster_samples(3)
    centres = torch.from_numpy(np.random.default_rng(0).normal(2, 2, (4, 5, 10)))
    parts = [cluster_sums(x.samples_of(client), centres, min_points=2) for client in range(x.clients)]
    for total, of_clients in zip(sums_over_clients(x, centres, 2), zip(*parts, strict=True), strict=True):
        torch.testing.assert_close(total, torch.stack(of_clients).sum(0))


def test_the_index_from_added_up_tables_is_that_of_pooled_samples() -> None:
    x = cluster_samples(4)
    rng = np.random.default_rng(1)
    first, second = (x.x[torch.from_numpy(rng.permutation(len(x.x))[:5])] for _ in range(2))
    stability, silhouette = compare_clusterings(Clustering(x, first), Clustering(x, second))
    labels = [torch.cdist(x.x, centres).argmin(1).numpy() for centres in (first, second)]
    assert stability == pytest.approx(adjusted_rand_score(*labels))
    pooled = [simplified_silhouette(x.x, centres)[1].mean() for centres in (first, second)]
    assert silhouette == pytest.approx(float(sum(pooled) / 2))


def test_the_simplified_silhouette_by_hand() -> None:
    cluster, score = simplified_silhouette(
        torch.tensor([[0.0], [4.0], [5.0], [10.0]]).double(), torch.tensor([[0.0], [10.0]]).double()
    )
    assert cluster.tolist() == [0, 0, 0, 1]
    assert score.tolist() == pytest.approx([1.0, 1 / 3, 0.0, 1.0])


def test_every_client_halves_its_own_samples() -> None:
    x = cluster_samples(3)
    first = draw_half(x, 0, 0)
    for client in range(x.clients):
        mine = first[x.client == client]
        assert int(mine.sum()) == -(-len(mine) // 2)
    assert not torch.equal(first, draw_half(x, 0, 1)), "each repeat draws again"
    # A client's draw does not depend on who else there is.
    two_clients = ClientSamples(x.x[x.client <= 1], x.client[x.client <= 1], 2)
    assert torch.equal(draw_half(two_clients, 0, 0), first[x.client <= 1])


def test_projection_by_moments_is_that_of_pooled_samples() -> None:
    x = cluster_samples(3)
    found = project(x, 4, 0.0, least_points=2)
    centred = x.x - x.x.mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    torch.testing.assert_close(found.x.abs(), (centred @ directions[:4].T).abs(), rtol=1e-6, atol=1e-6)


def tried(*stability: float) -> list[Candidate]:
    return [Candidate(k, value, 0.1 * k) for k, value in enumerate(stability, 2)]


def test_the_number_that_tells_most_and_is_found_again() -> None:
    assert choose_number(tried(0.5, 0.9, 0.7))[0] == 3
    assert choose_number(tried(1.0, 0.99, 0.985, 0.6))[0] == 4
    assert choose_number(tried(0.95, 0.7, 0.6, 0.78, 0.9, 0.85))[0] == 6, "more than the most stable number"
    assert choose_number(tried(-0.1, -0.2))[0] == 2, "worse than by chance"
    number, rule = choose_number(tried(0.9, 0.5, 0.4))
    assert number == 2
    assert "silhouette is largest at 4" in rule


def test_splits_of_touching_groups_are_not_counted_however_many() -> None:
    """The stability of four blobs in which ever more clusters are sought."""
    assert choose_number(tried(0.79, 1.0, 0.99, 0.90, 0.80, 0.72, 0.66, 0.62, 0.60, 0.59))[0] == 4


def test_too_few_samples_for_so_many_clusters_are_told() -> None:
    with pytest.raises(MethodError, match=r"set choose\.max_clusters to"):
        find_cluster_number(cluster_samples(3, samples=8), Search(2, 12, 1), 0)
