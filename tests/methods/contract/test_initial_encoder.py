"""Training from pretrained weights: the first state has them, and clients train them further."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.core.streams import Streams
from shoal.data.views.augment import normalise
from shoal.methods.contract.base import Federation, MethodError, Server
from shoal.methods.contract.context import Context, ModelSettings
from shoal.methods.contract.initial_encoder import initial_encoder
from shoal.methods.registry import BUILT_IN as METHODS
from shoal.models.frozen import frozen_encoder, pretrained_network
from tests.scripted_encoder import write_scripted

NAME = "efficientnet-lite0"
TRAINED = sorted(name for name, kind in METHODS.items() if kind.encoder == "trained")


def made(world: Any, name: str, **changes: Any) -> Any:
    kind = METHODS[name]
    model = ModelSettings(**{"encoder": NAME, "start": "pretrained", "clusters": 4, **changes})
    local = replace(kind.local_defaults, epochs=1, batch=4, lr=1e-3)
    return kind(kind.Settings(), Context(world.spec, model, local, rounds=2))


def start(method: Any, clients: int = 2) -> Server:
    result: Server = method.init_server(Federation(method.context.spec, (8,) * clients, Streams(0)))
    return result


def test_which_methods_start_pretrained() -> None:
    assert {"ssd", "fedsimclr", "fedsimclr_kmeans", "fedbyol", "fedema", "fedcc", "fedpnp", "cfcl"} <= set(TRAINED)
    assert not {"uifca", "clustergan", "fedkmeans", "kmeans", "kfed"} & set(TRAINED)


@pytest.mark.parametrize("name", ["fedsimclr", "fedcc", "fedbyol", "fedbyolcc"])
def test_the_first_state_has_the_pretrained_weights(world: Any, name: str) -> None:
    state = start(made(world, name)).model
    weights = pretrained_network(NAME).state_dict()
    assert len(weights) > 200
    for key, expected in weights.items():
        assert torch.equal(state[f"encoder.network.{key}"], expected), key


def test_a_round_trains_them_and_their_statistics(world: Any) -> None:
    method = made(world, "fedsimclr")
    server = start(method)
    client = world.client(every=12)
    update = method.client_update(method.broadcast(server, 0), client)
    changed = {key: not torch.equal(update.message.tensors[key], tensor) for key, tensor in server.model.items()}
    assert changed["encoder.network.network.conv_stem.weight"]
    assert changed["encoder.network.network.bn1.running_mean"]


def test_in_evaluation_features_are_those_of_the_frozen_encoder(world: Any) -> None:
    method = made(world, "fedsimclr")
    x = world.samples().x()[:3]
    encoder = initial_encoder(method.context).eval()
    torch.testing.assert_close(encoder(normalise(x)), frozen_encoder(NAME)(x), rtol=1e-4, atol=1e-4)


def test_random_stays_the_default(world: Any) -> None:
    method = made(world, "fedsimclr", encoder="tiny-conv", start="random")
    assert not any("network" in key for key in start(method).model)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("fedsimclr", {"start": "random"}, "model.start=pretrained to train"),
        ("fedsimclr", {"encoder": "tiny-conv"}, "cannot train 'tiny-conv': set model.encoder to efficientnet-lite0"),
        ("fedsimclr", {"encoder": "file:net.pt"}, "a network in TorchScript"),
        ("fedsimclr", {"encoder": "torchvision:resnet18"}, "is not installed"),
        ("fedsimclr", {"encoder": "pixels", "start": "random"}, "'pixels' is no network for that"),
        ("uifca", {}, "set model.start=random"),
        ("fedkmeans", {}, "set model.start=random"),
    ],
)
def test_what_does_not_fit_is_refused(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, changes: dict[str, Any], words: str
) -> None:
    for variable in ("SHOAL_HOME", "TORCH_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    write_scripted(tmp_path / "encoders" / "net.pt")
    with pytest.raises(MethodError, match=words):
        made(world, name, **changes)


def test_vectors_have_no_pretrained_encoder(world: Any) -> None:
    table = replace(world.spec, kind="vector", shape=(8,))
    model = ModelSettings(NAME, clusters=4, start="pretrained")
    with pytest.raises(MethodError, match="is for images"):
        METHODS["fedsimclr"](METHODS["fedsimclr"].Settings(), Context(table, model))
