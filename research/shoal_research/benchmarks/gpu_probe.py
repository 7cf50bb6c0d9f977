"""Whether a GPU computes what it should, and how near to its kernels it is kept: three minutes on one device.

    python -m shoal_research.benchmarks.gpu_probe --device cuda

For each method a round of small clients: step by step, by captured steps and all clients together. Captured steps must
give the same bits as plain ones; clients together the same losses up to rounding. Then the seconds of a round and of an
evaluation of all samples after it, and the memory that a worker holds after rounds. Exit code 1 where anything is
wrong. Needs torch and numpy alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from shoal.core.streams import Streams
from shoal.data.views.view import Samples
from shoal.methods.contract.base import Client, Evaluation, Federation, Message, Update
from shoal_research.benchmarks.device import Case, next_round, one_by_one, together, world
from shoal_research.benchmarks.meter import seconds

METHODS = ("fedsimclr", "fedpnp", "fedcc", "fedbyolcc", "ssd", "fedbyol", "fedema", "fedavg")
LOSS_WITHIN = {"fp32": 1e-2, "bf16": 0.1}
"""How far losses of clients together may be from those one by one, as a share."""
EVALUATED = (("fedpnp", "resnet18-cifar"), ("fedsimclr", "small-conv"))
"""Methods and encoders whose evaluation is timed; a large encoder is left out where all is shrunk."""
EVALUATED_CLIENTS = 5
RECALIBRATE = 4096
"""Samples that BatchNorm's statistics come from before an evaluation, as by default in a run."""
ROUNDS = 200
"""After so many rounds memory is compared with that after two."""


def tensors_of(update: Update) -> dict[str, torch.Tensor]:
    """All that a client's round made."""
    return {**update.message.tensors, **{f"memory {name}": t for name, t in (update.memory or {}).items()}}


def same_bits(one: Sequence[Update], other: Sequence[Update]) -> bool:
    """Whether two rounds made the same."""
    return all(
        torch.equal(tensor, tensors_of(b)[name])
        for a, b in zip(one, other, strict=True)
        for name, tensor in tensors_of(a).items()
    )


def updates(method: Any, cohort: Sequence[tuple[Message, Client]]) -> list[Update]:
    """A round, client after client."""
    return [method.client_update(*exchange) for exchange in cohort]


def near(one: Sequence[Update], other: Sequence[Any], within: float) -> bool:
    """Whether losses agree."""
    return all(
        isinstance(b, Update)
        and abs(a.metrics["loss"] - b.metrics["loss"]) <= within * max(1.0, abs(a.metrics["loss"]))
        for a, b in zip(one, other, strict=True)
    )


def probe(name: str, device: str, precision: str, samples: int, clients: int) -> dict[str, Any]:
    """One method: what agrees, and milliseconds a step in each way."""
    encoder = "mcmahan-small" if name == "fedavg" else "small-conv"
    case = Case(name, name, encoder, (1, 28, 28), clients, samples, 1, min(128, samples // 2))
    steps = clients * (samples // case.batch)
    method, cohort = world(case, device, precision)
    cohort = next_round(method, cohort)
    captured, _ = world(case, device, precision, graphs="on")
    expected, found = updates(method, cohort), updates(captured, cohort)
    found = updates(captured, cohort)  # by now all of them are replayed
    row: dict[str, Any] = {"method": name, "precision": precision, "captured bits": same_bits(expected, found)}
    row["together"] = near(expected, method.cohort_update(cohort), LOSS_WITHIN[precision])
    ways: dict[str, Callable[[], None]] = {
        "plain ms": lambda: one_by_one(method, cohort),
        "captured ms": lambda: one_by_one(captured, cohort),
        "together ms": lambda: together(method, cohort, clients),
    }
    for way, work in ways.items():
        row[way] = round(1000 * min(seconds(work, torch.device(device)) for _ in range(2)) / steps, 2)
    return row


def growth(device: str, rounds: int, samples: int) -> dict[str, Any]:
    """Megabytes that torch holds on the device after two rounds and after all; elsewhere than on CUDA 0."""
    case = Case("memory", "fedpnp", "small-conv", (1, 28, 28), 4, samples, 1, min(128, samples // 2))
    method, cohort = world(case, device, "bf16" if device != "cpu" else "fp32", graphs="on")
    reserved = []
    for number in range(1, rounds + 1):
        found = updates(method, cohort)
        if number in (2, rounds):
            reserved.append(torch.cuda.memory_reserved() / 2**20 if device.startswith("cuda") else 0.0)
        cohort = [
            (message, replace(client, memory=update.memory or {}, streams=replace(client.streams, round=number + 1)))
            for (message, client), update in zip(cohort, found, strict=True)
        ]
    first = reserved[0]
    last = reserved[-1]
    return {
        "rounds": rounds,
        "MB after 2": round(first, 1),
        "MB after all": round(last, 1),
        "grows": last > 1.05 * first + 8,
    }


def evaluation_share(name: str, encoder: str, device: str, samples: int) -> dict[str, Any]:
    """Seconds of a round of five clients with CIFAR-sized images, and of the judgement of all samples after it."""
    case = Case(name, name, encoder, (3, 32, 32), EVALUATED_CLIENTS, samples, 1, min(128, samples // 2))
    method, cohort = world(case, device, "fp32" if device == "cpu" else "bf16", graphs="auto")
    cohort = next_round(method, cohort)
    data = cohort[0][1].train.data
    index = torch.arange(case.clients * samples, device=device)
    train = Samples(data, index)
    server = method.init_server(Federation(data.spec, (samples,) * case.clients, Streams(0)))
    clients = [client for _, client in cohort]

    def judge(*, final: bool) -> None:
        evaluation = Evaluation(data, train, Streams(0, 2), final=final, recalibrate=RECALIBRATE)
        found = method.recalibrate(server, clients, evaluation)
        method.evaluate(server.with_model(found), clients, evaluation)

    ways: dict[str, Callable[[], None]] = {
        "round s": lambda: one_by_one(method, cohort),
        "evaluation s": lambda: judge(final=False),
        "last evaluation s": lambda: judge(final=True),
    }
    for work in ways.values():
        work()  # warms up
    took = {way: min(seconds(work, torch.device(device)) for _ in range(2)) for way, work in ways.items()}
    return {"method": name, "encoder": encoder, **{way: round(each, 3) for way, each in took.items()}}


def main(arguments: Sequence[str] | None = None) -> None:
    """A line a method, and one for memory; exit code 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", nargs="*", default=["fp32", "bf16"])
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--shrink", type=int, default=1, help="to try it out: divides samples and rounds")
    given = parser.parse_args(arguments)
    samples, wrong = max(16, 512 // given.shrink), 0
    for precision in given.precision:
        for name in given.methods:
            row = probe(name, given.device, precision, samples, max(2, 8 // given.shrink))
            wrong += not (row["captured bits"] and row["together"])
            print(json.dumps(row), flush=True)
    for name, encoder in EVALUATED[given.shrink > 1 :]:
        print(json.dumps(evaluation_share(name, encoder, given.device, max(16, 3000 // given.shrink))), flush=True)
    memory = growth(given.device, max(3, ROUNDS // given.shrink), samples)
    wrong += memory["grows"]
    print(json.dumps(memory), flush=True)
    name = torch.cuda.get_device_name() if given.device.startswith("cuda") else given.device
    print(json.dumps({"device": name, "torch": torch.__version__, "wrong": wrong}), flush=True)
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
