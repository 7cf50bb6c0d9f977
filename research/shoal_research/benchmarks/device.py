"""What one device trains: clients one after another, several in one computation, and in a loop by hand.

    python -m shoal_research.benchmarks.device --device cuda

Client-trainings per second of FedAvg on the workload of `benchmarks.peers` and on CIFAR-sized images, images per second
of ResNet-18, and FedPNP's paper run on CIFAR-10 extrapolated from a measured local epoch: of its second round, in which
each client has a past model to ask. Needs torch and numpy alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from shoal.core.streams import Streams
from shoal.data.sets.prepared import Manifest, open_prepared, write_prepared
from shoal.data.views.augment import AugmentSettings, normalise
from shoal.data.views.view import DeviceData, Samples
from shoal.methods.contract.base import Client, Context, Federation, LocalSettings, Message, MethodError, ModelSettings
from shoal.methods.registry import METHODS
from shoal_research.benchmarks.meter import seconds


@dataclass(frozen=True)
class Case:
    """Clients of one size on random images."""

    name: str
    method: str
    encoder: str
    shape: tuple[int, int, int]
    clients: int
    samples: int
    epochs: int
    batch: int


CASES = (
    Case("20 clients of 500 at 28x28", "fedavg", "mcmahan-small", (1, 28, 28), 20, 500, 1, 50),
    Case("100 clients of 500 at 32x32x3", "fedavg", "plain-conv5", (3, 32, 32), 100, 500, 5, 50),
    Case("ResNet-18 at 32 px", "fedavg", "resnet18-cifar", (3, 32, 32), 1, 10_000, 1, 128),
    Case("FedPNP, ResNet-18 at 32 px", "fedpnp", "resnet18-cifar", (3, 32, 32), 1, 10_000, 1, 128),
)
PAPER_EPOCHS = 100 * 5 * 5
"""Local epochs of 10,000 images in FedPNP's CIFAR-10 run: 100 rounds, 5 clients, 5 epochs each."""


def world(case: Case, device: str, precision: str, graphs: str = "off") -> tuple[Any, list[tuple[Message, Client]]]:
    """The method, and its clients with their messages."""
    rng = np.random.default_rng(0)
    count = case.clients * case.samples
    x = rng.integers(0, 256, (count, *case.shape), dtype=np.uint8)
    manifest = Manifest("device", "image", case.shape, 10, count, 0, source="random images", licence="none")
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder) / "device"
        write_prepared(stored, manifest, {"train_x": x, "train_y": rng.integers(0, 10, count)})
        data = DeviceData(open_prepared(stored), device)
    kind = METHODS[case.method]
    local = LocalSettings(epochs=case.epochs, batch=case.batch, optimiser="sgd", lr=0.01, momentum=0.0)
    model = ModelSettings(case.encoder)
    place = torch.device(device)
    context = Context(data.spec, model, local, AugmentSettings(), 0, 10, 1.0, place, precision, graphs=graphs)
    method = kind(kind.Settings(), context)
    server = method.init_server(Federation(data.spec, (case.samples,) * case.clients, Streams(0)))
    cohort = []
    for k in range(case.clients):
        own = torch.arange(k * case.samples, (k + 1) * case.samples, device=device)
        samples = Samples(data, own)
        client = Client(k, samples, samples, {}, (), Streams(0, 1, k))
        cohort.append((method.broadcast(server, k), client))
    return method, cohort


def next_round(method: Any, cohort: Sequence[tuple[Message, Client]]) -> list[tuple[Message, Client]]:
    """The same clients in round 2, with what their first round left them: FedPNP's past model, BYOL's target."""
    found = []
    for message, client in cohort:
        memory = method.client_update(message, client).memory or {}
        facts = {**message.facts, **(method.facts(2) if hasattr(method, "facts") else {})}
        later = replace(client, memory=memory, streams=replace(client.streams, round=2))
        found.append((replace(message, facts=facts), later))
    return found


def by_hand(case: Case, method: Any, cohort: Sequence[tuple[Message, Client]]) -> Callable[[], None]:
    """The same training of a classifier without anything of Shoal's classes but the network."""
    network = method.network()
    start = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    data = cohort[0][1].train.data

    def run() -> None:
        for _, client in cohort:
            network.load_state_dict(start)
            network.train()
            optimiser = torch.optim.SGD(network.parameters(), 0.01, fused=True)
            for _ in range(case.epochs):
                order = client.train.index[torch.randperm(case.samples).to(data.device)]
                for rows in order[: case.samples // case.batch * case.batch].split(case.batch):
                    x = normalise(data.train_x[rows].float().div_(255)).contiguous(memory_format=torch.channels_last)
                    with method.context.autocast():
                        scores = network(x)
                    loss = F.cross_entropy(scores.float(), data.train_y[rows])
                    optimiser.zero_grad(set_to_none=True)
                    loss.backward()
                    optimiser.step()
            {name: tensor.cpu() for name, tensor in network.state_dict().items()}

    return run


def together(method: Any, cohort: Sequence[tuple[Message, Client]], size: int) -> None:
    """All clients, `size` of them in one computation."""
    for start in range(0, len(cohort), size):
        for update in method.cohort_update(cohort[start : start + size]):
            if isinstance(update, Exception):
                raise update


def one_by_one(method: Any, cohort: Sequence[tuple[Message, Client]]) -> None:
    """All clients, one after another."""
    for message, client in cohort:
        method.client_update(message, client)


def ways_to_train(
    case: Case, device: str, precision: str, sizes: Sequence[int], *, graphs: bool
) -> dict[str, Callable[[], None]]:
    """Return the ways to train the clients of a case, by name; the others are compared with the first.

    Args:
        case: what to train.
        device: torch's name of the device.
        precision: `fp32` or `bf16`.
        sizes: numbers of clients in one computation; those above the case's clients are passed over.
        graphs: also with steps as CUDA graphs, where torch can capture them.
    """
    method, cohort = world(case, device, precision)
    cohort = next_round(method, cohort)
    ways: dict[str, Callable[[], None]] = {}
    if case.method == "fedavg":
        ways["by hand"] = by_hand(case, method, cohort)
    ways["one by one"] = partial(one_by_one, method, cohort)
    if graphs:
        captured, work = world(case, device, precision, graphs="on")
        try:
            ways["one by one, graphs"] = partial(one_by_one, captured, next_round(captured, work))
        except MethodError as error:
            print(f"{case.name}: {error}", file=sys.stderr)
    for size in sizes:
        if 1 < size <= case.clients:
            ways[f"{size} together"] = partial(together, method, cohort, size)
    return ways


def timings(ways: dict[str, Callable[[], None]], device: str, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each repeat of each way; the ways take turns, and a first turn warms up."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(repeats + 1):
        for name, way in ways.items():
            took = seconds(way, torch.device(device))
            if number:
                found[name].append(took)
    return found


def print_row(case: Case, name: str, took: list[float], first: float) -> None:
    """Print a row of the table, given the seconds of a way and the median of the first way."""
    middle = statistics.median(took)
    images = case.clients * case.samples * case.epochs / middle
    print(
        f"| {case.name} | {name} | {middle:.2f} | {case.clients / middle:.2f} | {images:,.0f} | "
        f"{first / middle:.2f} | {len(took)} |",
        flush=True,
    )
    if case.method == "fedpnp":
        hours = middle / case.epochs / case.samples * 10_000 * PAPER_EPOCHS / 3600
        print(
            f"\nFedPNP's CIFAR-10 run, {PAPER_EPOCHS:,} local epochs of 10,000 images with a past model, {name}: "
            f"{hours:,.1f} h."
        )


def measure(
    case: Case,
    device: str,
    precision: str,
    sizes: Sequence[int],
    repeats: int,
    *,
    graphs: bool = False,
) -> None:
    """Time every way to train a case, and print a row for each; see `ways_to_train`."""
    found = timings(ways_to_train(case, device, precision, sizes, graphs=graphs), device, repeats)
    first = statistics.median(next(iter(found.values())))
    for name, took in found.items():
        print_row(case, name, took, first)


def shrunk(case: Case, by: int) -> Case:
    """The case with its clients and their images divided by this: at least two clients of many, and a batch each."""
    clients = case.clients if case.clients == 1 else max(2, case.clients // by)
    return replace(case, clients=clients, samples=max(case.batch, case.samples // by))


def main() -> None:
    """The table on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default=None, help="fp32 or bf16; by default bf16 on a GPU")
    parser.add_argument("--together", nargs="*", type=int, default=[5, 20, 100], help="clients in one computation")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--cases", nargs="*", type=int, help="numbers of cases, from 0; by default all on a GPU, else 0"
    )
    parser.add_argument(
        "--shrink", type=int, default=1, help="divide clients, the images of each, and how many are together, by this"
    )
    given = parser.parse_args()
    kind = torch.device(given.device).type
    if kind == "cpu":
        torch.set_num_threads(1)
    precision = given.precision or ("fp32" if kind == "cpu" else "bf16")
    print("| work | clients | s | clients/s | images/s | speed over the first way | runs |")
    print("|---|---|---|---|---|---|---|")
    sizes = sorted({max(2, size // given.shrink) for size in given.together})
    for number in given.cases or ([0] if kind == "cpu" else range(len(CASES))):
        case = shrunk(CASES[number], given.shrink)
        measure(case, given.device, precision, sizes, given.repeats, graphs=kind != "cpu")
    name = {"cpu": "cpu, 1 thread", "cuda": ""}.get(kind, given.device) or torch.cuda.get_device_name()
    print(json.dumps({"device": name, "precision": precision, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
