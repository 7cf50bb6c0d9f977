"""A local step of FedPNP and of SSD beside a hand-written loop of the same arithmetic: same views, same losses, same
precision, without anything of the engine or of the methods' classes. What a method does once a round (FedPNP settles
its past model) the loop by hand does too, by the method's own function.

    python -m shoal_research.benchmarks.steps --repeats 5
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core.streams import Streams
from shoal.data.sets.prepared import Manifest, open_prepared, write_prepared
from shoal.data.views.augment import AugmentSettings, two_views
from shoal.data.views.view import DeviceData, Samples
from shoal.methods.contract.base import Client, Context, Federation, LocalSettings, Message, ModelSettings
from shoal.methods.fedpnp.fedpnp import SETTLING_SAMPLES
from shoal.methods.fedpnp.pool import past_look_alikes
from shoal.methods.losses.align_uniform import align_loss, uniform_loss
from shoal.methods.losses.contrastive import cluster_contrastive, contrastive
from shoal.methods.registry import METHODS
from shoal.methods.ssd.losses import distill_loss, dsr_loss
from shoal.methods.training.local import as_input, view_recipe
from shoal_research.benchmarks.meter import seconds
from shoal_research.benchmarks.peers import versions

SAMPLES, BATCH = 1280, 128


def images(device: str) -> DeviceData:
    """Random colour images of 32x32."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (SAMPLES, 3, 32, 32), dtype=np.uint8)
    manifest = Manifest("steps", "image", (3, 32, 32), 10, SAMPLES, 0, source="random images", licence="none")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "steps"
        write_prepared(place, manifest, {"train_x": x, "train_y": np.arange(SAMPLES) % 10})
        return DeviceData(open_prepared(place), device)


def setting(name: str, encoder: str, data: DeviceData, precision: str) -> tuple[Any, Client, Message]:
    """A method, a client with a past, and the message to it in round 2."""
    kind = METHODS[name]
    local = LocalSettings(epochs=1, batch=BATCH, optimiser="sgd", lr=0.01, momentum=0.9)
    context = Context(data.spec, ModelSettings(encoder), local, AugmentSettings(), 0, 10, 1.0, data.device, precision)
    method = kind(kind.Settings(), context)
    everything = torch.arange(SAMPLES, device=data.device)
    samples = Samples(data, everything)
    server = method.init_server(Federation(data.spec, (SAMPLES,) * 10, Streams(0)))
    first = method.client_update(method.broadcast(server, 0), Client(0, samples, samples, {}, (), Streams(0, 1, 0)))
    client = Client(0, samples, samples, first.memory or {}, (), Streams(0, 2, 0))
    return method, client, method.broadcast(server.next(server.model), 0)


def plain_fedpnp(method: Any, client: Client, data: DeviceData) -> Callable[[], None]:
    """FedPNP's epoch by hand."""
    network = method.network()
    s, recipe = method.settings, view_recipe(method.context)
    past = method._past(client)

    def once() -> None:
        nonlocal past
        past = method._past(client)
        generator = torch.Generator(data.device).manual_seed(0)
        some = data.train_x[torch.randperm(SAMPLES)[:SETTLING_SAMPLES].to(data.device)].float().div_(255)
        method._settle(past, as_input(two_views(some, recipe, generator)))

    def loss(x: Tensor) -> Tensor:
        with method.context.autocast():
            now = network(x)
        with torch.no_grad(), method.context.autocast():
            labels = past(x).y
        instance = contrastive(*now.z.chunk(2), method.tau_instance, past_look_alikes(labels, s.mu))
        return instance + s.alpha * cluster_contrastive(*now.y.chunk(2), method.tau_cluster)

    return epoch(network, loss, recipe, data, once)


def plain_ssd(method: Any, client: Client, data: DeviceData) -> Callable[[], None]:
    """SSD's epoch by hand."""
    message = Message({}, {"clients": 10})
    network = method.network()
    extra = method.prepare(message, client)
    s = method.settings

    def loss(x: Tensor) -> Tensor:
        with method.context.autocast():
            out = network(x)
        h, z = out.h.float(), out.z.float()
        a, b = F.normalize(z, dim=1).chunk(2)
        total = align_loss(a, b) + s.beta * (uniform_loss(a) + uniform_loss(b)) / 2
        spread = [dsr_loss(part, extra["scale"], extra["basis"], 1) for part in (a, b)]
        total = total + s.gamma * (spread[0] + spread[1]) / 2
        return total + s.delta * distill_loss(h, z, s.temperature)

    return epoch(network, loss, method.recipe(), data, lambda: None)


def epoch(
    network: nn.Module,
    loss: Callable[[Tensor], Tensor],
    recipe: Any,
    data: DeviceData,
    once: Callable[[], object],
) -> Callable[[], None]:
    """What is done once a round, then one pass over the images in random order."""
    start = copy.deepcopy(network.state_dict())

    def run() -> None:
        once()
        network.load_state_dict(start)
        network.train()
        optimiser = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9, fused=True)
        generator = torch.Generator(data.device).manual_seed(0)
        for rows in torch.randperm(SAMPLES).to(data.device).split(BATCH):
            value = loss(as_input(two_views(data.train_x[rows].float().div_(255), recipe, generator)))
            optimiser.zero_grad(set_to_none=True)
            value.backward()
            optimiser.step()
        float(value.detach())

    return run


def main(argv: list[str] | None = None) -> None:
    """Both methods, in turn with their loops."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--encoder", default="small-conv")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    data = images(given.device)
    steps = SAMPLES // BATCH
    print("| method | ms a step | ms a step by hand | ratio | runs |")
    print("|---|---|---|---|---|")
    for name, by_hand in (("fedpnp", plain_fedpnp), ("ssd", plain_ssd)):
        method, client, message = setting(name, given.encoder, data, given.precision)
        steps_by_hand = by_hand(method, client, data)
        pairs = []
        for number in range(given.repeats + 1):
            ours = seconds(lambda: method.client_update(message, client), data.device)  # noqa: B023
            pair = (ours, seconds(steps_by_hand, data.device))
            if number:  # the first warms up
                pairs.append(pair)
        ours, theirs = (statistics.median(p[k] for p in pairs) / steps * 1000 for k in (0, 1))
        ratio = statistics.median(p[0] / p[1] for p in pairs)
        print(f"| {name} | {ours:.1f} | {theirs:.1f} | {ratio:.3f} | {len(pairs)} |", flush=True)
    print(json.dumps({**versions(None), "encoder": given.encoder, "device": given.device}))


if __name__ == "__main__":
    main()
