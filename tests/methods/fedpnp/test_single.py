import pytest
import torch

from shoal.methods.contract.base import MethodError


def test_nothing_but_metrics_travels(world):
    method = world.method("single")
    server, updates = world.run(method, 2)
    assert server.round == 2
    assert server.tensors == {}
    assert all(u.message.size(64) == 0 for u in updates)
    with pytest.raises(MethodError, match="no model"):
        method.predictor(server)


def test_adam_goes_on_over_rounds(world):
    _, updates = world.run(world.method("single"), 2)
    # 96 samples in batches of 32, 2 epochs a round.
    assert [u.memory["optimiser.0.step"].item() for u in updates] == [6, 12]


def test_all_clients_start_alike_and_are_judged_one_by_one(world, client_list):
    method = world.method("single")
    fresh = [world.client(i, 1, every=2) for i in range(2)]
    trained = [
        world.client(c.id, 2, method.client_update(method.broadcast(world.start(method), c.id), c).memory, every=2)
        for c in fresh
    ]
    x = world.samples().x()[:5]
    assert torch.equal(method.embedder(fresh[0].memory)(x), method.embedder(fresh[1].memory)(x))
    assert not torch.equal(method.embedder(trained[0].memory)(x), method.embedder(trained[1].memory)(x))
    server = world.start(method)
    each = [method.evaluate(server, client_list([c]), world.evaluation()) for c in trained]
    both = method.evaluate(server, client_list(trained), world.evaluation())
    for name in ("acc", "nmi", "ari", "purity", "balance"):
        assert both[name] == pytest.approx((each[0][name] + each[1][name]) / 2)
    accs = [scores["acc"] for scores in each]
    assert (both["acc_min"], both["acc_max"]) == (min(accs), max(accs))
