"""UIFCA with one trunk: its density, what the server makes of moments and posteriors, and planted clusters found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

from shoal.data.sets.prepared import Manifest, open_prepared, write_prepared
from shoal.data.views.augment import RECIPES
from shoal.data.views.view import DeviceData
from shoal.methods.contract.base import ClientError, Message, MethodError, Server, Update
from shoal.methods.contract.declared import fault
from shoal.methods.uifca.flow_method import minibatches
from shoal.models.normalising_flows import AffineFlow
from shoal_research.variants.latent_mixture import LOG_DEVIATIONS, MEANS, LatentMixture, breadth
from shoal_research.variants.shared_protocol import MIN_DEVIATION, OFFSETS, State, gaussians, moved_offsets
from tests.methods.uifca.federated_blobs import CENTRES, D, Federated, K, blobs

SHORT: dict[str, Any] = {"cluster_rounds": 4, "comm_rounds": 2}


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Federated:
    """Three clients of 40 points, each of which holds one blob alone."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(K), 40)
    x = (CENTRES[y] + rng.standard_normal((len(y), D))).astype(np.float32)
    folder = tmp_path_factory.mktemp("apart") / "apart"
    manifest = Manifest("apart", "vector", (D,), K, len(x), 0, "made here", "none")
    write_prepared(folder, manifest, {"train_x": x, "train_y": y.astype(np.int64)})
    return Federated(DeviceData(open_prepared(folder)), torch.arange(len(x)).split(40))


def learning(federated: Federated, **settings: Any) -> tuple[Any, Server, list[Any]]:
    """The method, its server and the clients' memories when the first round that learns is due."""
    method = federated.method("uifca_shared", 1e-3, **{**SHORT, **settings})
    server, memory = federated.play(method, 2)
    assert State.from_facts(server.facts) == State("learn")
    return method, server, memory


def test_the_density_is_that_of_a_gaussian_behind_the_trunk() -> None:
    torch.manual_seed(0)
    flow = AffineFlow(2)
    with torch.no_grad():
        flow.matrix.copy_(torch.tensor([[2.0, 0.5], [0.0, 0.5]]))
        flow.shift.copy_(torch.tensor([1.0, -1.0]))
    mixture = LatentMixture(flow, 2)
    with torch.no_grad():
        mixture.means.copy_(torch.tensor([[0.0, 0.0], [1.0, 3.0]]))
        mixture.log_deviations.copy_(torch.tensor([[0.0, 0.0], [0.5, -0.3]]))
    x = torch.randn(5, 2)
    # z = A (x - b) is N(m, S) where x is N(A^-1 m + b, A^-1 S A^-T).
    inverse = torch.linalg.inv(flow.matrix)
    for k in range(2):
        deviations = torch.diag((2 * mixture.log_deviations[k]).exp())
        expected = MultivariateNormal(inverse @ mixture.means[k] + flow.shift, inverse @ deviations @ inverse.T)
        torch.testing.assert_close(mixture(x)[:, k], expected.log_prob(x), atol=1e-4, rtol=1e-4)


def test_gaussians_are_those_of_all_clients_points_together() -> None:
    x = torch.randn(30, 2, dtype=torch.float64)
    cluster = torch.tensor([0, 1, 0] * 10)

    def sent(part: slice) -> Update:
        rows = [x[part][cluster[part] == k] for k in range(3)]
        total, squares = (torch.stack([f(r).sum(0) for r in rows]).float() for f in (torch.clone, torch.square))
        return Update(Message({"total": total, "squares": squares}, {"counts": [len(r) for r in rows]}))

    found = gaussians([sent(slice(0, 7)), sent(slice(7, 30))])
    for k, rows in enumerate((x[cluster == 0], x[cluster == 1], x)):  # the third has no point: it begins as all of them
        expected = Normal(rows.mean(0), rows.std(0, correction=0) + MIN_DEVIATION)
        torch.testing.assert_close(found[MEANS][k].double(), expected.loc, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(found[LOG_DEVIATIONS][k].double().exp(), expected.scale, atol=1e-6, rtol=1e-5)


def test_clusters_are_made_equally_full_over_the_federation() -> None:
    scores = torch.randn(400, 3) + torch.tensor([3.0, 0.0, -2.0])
    offsets = torch.zeros(3)
    for _ in range(40):
        offsets = moved_offsets(offsets, (scores - offsets).softmax(1).sum(0))
    torch.testing.assert_close((scores - offsets).softmax(1).mean(0), torch.full((3,), 1 / 3), atol=1e-3, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["federated", "apart"])
def test_planted_clusters_are_found(kind: str, request: pytest.FixtureRequest) -> None:
    federated = request.getfixturevalue(kind)
    _, memory = federated.play(federated.method("uifca_shared", 1e-3, **SHORT), 30)
    assert federated.purity(memory) == 1.0


def test_a_client_leaves_the_gaussian_of_a_cluster_alone_of_which_it_has_no_point(apart: Federated) -> None:
    method, server, memory = learning(apart)
    sent = method.client_update(method.broadcast(server, 0), apart.client(0, 3, memory[0])).message
    (own,) = [k for k, count in enumerate(sent.facts["counts"]) if count]
    for name in (MEANS, LOG_DEVIATIONS):
        moved = (sent.tensors[name] - server.tensors[name]).abs().amax(1)
        assert moved[own] > 1e-3
        assert moved.sum() == moved[own]
    assert not torch.equal(sent.tensors["flow.matrix"], server.tensors["flow.matrix"]), "the trunk is everybody's"


def test_each_gaussian_is_averaged_by_its_points_and_the_trunk_by_all(federated: Federated) -> None:
    method, server, _ = learning(federated)
    ones = {name: torch.ones_like(t) for name, t in server.tensors.items() if name != OFFSETS and "labels" not in name}
    even = {"fullness": torch.ones(K)}
    one = Update(Message({**ones, **even}, {"n": 30, "counts": [20, 10, 0], "changed": 0}))
    other = {name: 4 * t for name, t in ones.items()} | even
    many = Update(Message(other, {"n": 60, "counts": [10, 50, 0], "changed": 0}))
    after = method.aggregate(server, iter([one, many])).tensors
    assert torch.allclose(after["flow.matrix"], torch.tensor(3.0))
    assert torch.allclose(after[MEANS][0], torch.tensor(2.0))
    assert torch.allclose(after[MEANS][1], torch.tensor(3.5))
    assert torch.equal(after[MEANS][2], server.tensors[MEANS][2]), "nobody had a point of it"


def test_a_clients_own_proportions_decide_where_densities_do_not(apart: Federated) -> None:
    method, server, _ = learning(apart)
    alike = {MEANS: torch.zeros(K, D), LOG_DEVIATIONS: torch.zeros(K, D)}
    network = method.loaded({**server.tensors, **alike})
    client, cluster = apart.client(0), torch.tensor([2] * 30 + [1] * 10)
    found = method.posteriors(network, torch.zeros(K), client, cluster, 1)
    expected = torch.tensor([1.0, 11.0, 31.0]).sqrt()  # one more each, by the power of one half
    torch.testing.assert_close(found, (expected / expected.sum()).expand(40, K))
    free = method.posteriors(network, torch.tensor([0.0, 0.0, 1.0]), client, None, 1)
    torch.testing.assert_close(free[0], torch.tensor([0.0, 0.0, -1.0]).softmax(0))


def test_the_loss_is_nats_per_dimension_and_a_contrast_by_how_many_clusters_a_client_has(
    federated: Federated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one local step, against the loss written out."""
    monkeypatch.setattr("shoal_research.variants.shared_trunk.TEMPERATURE", 0.3)
    method, server, memory = learning(federated, steps=1)
    update = method.client_update(method.broadcast(server, 0), federated.client(0, 3, memory[0]))
    counts = torch.tensor(update.message.facts["counts"])
    assert breadth((counts / 30).log()).item() == pytest.approx(K, rel=1e-4), "ten points of each blob"
    rows = minibatches(federated.client(0, 3).streams, 0, 30, 1, 20)[0]
    density = method.loaded(server.tensors)(federated.client(0).train.raw(rows).float()).detach()
    own = memory[0]["assignment"][rows]
    nats = -density[torch.arange(20), own].mean() / D
    posterior = (density / (0.3 * D)).softmax(1) * (counts / 30)
    contrast = -(posterior[torch.arange(20), own] / posterior.sum(1)).log().mean()
    assert update.metrics["nats"] == pytest.approx(nats.item(), rel=1e-5)
    assert update.metrics["contrast"] == pytest.approx(contrast.item(), rel=1e-4)
    assert update.metrics["loss"] == pytest.approx((nats + contrast).item(), rel=1e-4)
    two = {**memory[0], "assignment": torch.tensor([0, 1] * 15)}
    found = method.client_update(method.broadcast(server, 0), federated.client(0, 3, two)).metrics
    assert found["contrast"] > 0.1, "half of them are said to be where they are not"
    assert found["loss"] == pytest.approx(found["nats"] + 2 / K * found["contrast"], rel=1e-5)


def test_images_are_learned_from_views_and_assigned_by_several(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[torch.Tensor] = []

    def moved(x: torch.Tensor, recipe: Any, generator: Any) -> torch.Tensor:
        assert recipe == RECIPES["moved"]
        batches.append(x)
        return x

    monkeypatch.setattr("shoal_research.variants.shared_trunk.augment", moved)
    method = world.method("uifca_shared", steps=5, batch=16)
    server, memory = world.at_training(method)
    assert not batches, "moments are of the images as they are"
    method.client_update(method.broadcast(server, 0), world.client(0, 3, memory))
    assert [len(x) for x in batches] == [16] * 5
    batches.clear()
    later = replace(server, facts=State("learn", 1).facts())
    method.client_update(method.broadcast(later, 0), world.client(0, 4, memory))
    assert [len(x) for x in batches] == [96] * 4 + [16] * 5


def test_points_are_assigned_again_once_a_cluster_round(federated: Federated) -> None:
    method, server, memory = learning(federated)
    wrong = {**memory[0], "assignment": (memory[0]["assignment"] + 1) % K}
    kept = method.client_update(method.broadcast(server, 0), federated.client(0, 3, wrong))
    assert torch.equal(kept.memory["assignment"], wrong["assignment"])
    assert kept.message.facts["changed"] == 0
    later = replace(server, facts=State("learn", 1).facts())
    again = method.client_update(method.broadcast(later, 0), federated.client(0, 3, wrong))
    assert torch.equal(again.memory["assignment"], memory[0]["assignment"])
    assert again.message.facts["changed"] == 30


@pytest.mark.long
def test_a_client_that_missed_the_start_gets_a_cluster_when_it_comes(federated: Federated) -> None:
    method = federated.method("uifca_shared", 1e-3, fraction=0.5, **SHORT)
    early, every = list(range(6)), list(range(8))
    server, memory = federated.play(method, 30, [early, early, *[every] * 28])
    assert server.finished
    assert federated.purity(memory) == 1.0


def test_a_start_that_no_client_has_points_for_is_refused(federated: Federated) -> None:
    method = federated.method("uifca_shared", fraction=0.5, **SHORT)
    with pytest.raises(MethodError, match=r"k-FED's round: raise participation\.fraction"):
        federated.play(method, 2, [[0, 1], [2, 3]])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda m: replace(m, facts={**m.facts, "counts": [31, 1, 0]}), "'counts'"),
        (lambda m: replace(m, tensors={**m.tensors, "fullness": m.tensors["fullness"] - 30}), "'fullness'"),
        (lambda m: replace(m, facts={**m.facts, "changed": 31}), "'changed'"),
    ],
)
def test_a_message_that_cannot_be_is_refused(federated: Federated, spoil: Any, says: str) -> None:
    method, server, memory = learning(federated)
    sent = method.client_update(method.broadcast(server, 0), federated.client(0, 3, memory[0])).message
    form = method.declared(server, 0, 30)
    assert fault(sent, form) is None
    found = fault(spoil(sent), form)
    assert found is not None
    assert says in found


def test_a_client_without_points_or_with_holes_says_so(federated: Federated, tmp_path: Path) -> None:
    method, server, _ = learning(federated)
    nobody = replace(federated.client(0), train=federated.client(0).train.take(torch.arange(0)))
    with pytest.raises(ClientError, match="client 0 has 0 training samples"):
        method.client_update(method.broadcast(server, 0), nobody)
    holes = blobs(tmp_path / "holes", 2, 20)
    x = holes.data.train_x.clone()
    x[3, 1] = float("nan")
    holes.data.train_x = x
    with pytest.raises(ClientError, match="not finite"):
        method.client_update(method.broadcast(server, 0), holes.client(0))


def test_data_without_labels_are_clustered_and_judged(unlabelled: Federated) -> None:
    method = unlabelled.method("uifca_shared", 1e-3, **SHORT)
    server, memory = unlabelled.play(method, 30)
    clients: Any = [unlabelled.client(k, 30, memory[k]) for k in range(3)]
    metrics = method.evaluate(server, clients, unlabelled.evaluation(30))
    assert metrics["clusters_used"] == K
    assert "acc" not in metrics
