"""Where the time of a FedPNP client goes: seconds inside each part of its local step.

python -m shoal_research.benchmarks.profile_round
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from shoal.methods.fedpnp import cluster_method, fedpnp
from shoal.methods.training import two_views
from shoal_research.benchmarks.steps import BATCH, SAMPLES, images, setting


@contextlib.contextmanager
def timed(parts: list[tuple[Any, str, str]]) -> Iterator[dict[str, float]]:
    """Count the seconds spent in functions, given as (owner, attribute, name of the part); none counts twice."""
    spent: dict[str, float] = defaultdict(float)
    of_inner: list[float] = []
    """For each part that is under way, the seconds of the parts within it."""
    with contextlib.ExitStack() as stack:
        for owner, attribute, name in parts:
            inner = getattr(owner, attribute)

            def outer(*args: Any, inner: Any = inner, name: str = name, **kwargs: Any) -> Any:
                of_inner.append(0.0)
                began = time.perf_counter()
                try:
                    return inner(*args, **kwargs)
                finally:
                    took = time.perf_counter() - began
                    spent[name] += took - of_inner.pop()
                    if of_inner:
                        of_inner[-1] += took

            stack.enter_context(mock.patch.object(owner, attribute, outer))
        yield spent


def profile(encoder: str, repeats: int) -> tuple[dict[str, float], float]:
    """Seconds inside each part of a FedPNP client's round, by the part's name, and seconds in all; `repeats` rounds."""
    method, client, message = setting("fedpnp", encoder, images("cpu"), "fp32")
    parts = [
        (two_views, "two_views", "augmentation: two views of every sample"),
        (type(method.network()), "__call__", "forward pass of the own model"),
        (type(method.network()), "labels", "forward pass of the past model"),
        (type(method), "_settle", "BatchNorm's statistics of the past model, once a round"),
        (torch.Tensor, "backward", "backward pass"),
        (torch.optim.SGD, "step", "optimiser"),
        (fedpnp, "past_look_alikes", "pools of past negatives"),
        (fedpnp, "view_contrast", "instance loss"),
        (cluster_method, "cluster_contrastive", "cluster loss"),
    ]
    method.client_update(message, client)
    with timed(parts) as spent:
        began = time.perf_counter()
        for _ in range(repeats):
            method.client_update(message, client)
        return {name: spent[name] for _, _, name in parts}, time.perf_counter() - began


def main() -> None:
    """A table of parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="small-conv")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    spent, total = profile(given.encoder, given.repeats)
    steps = given.repeats * SAMPLES // BATCH
    print("| part | ms a step | share |")
    print("|---|---|---|")
    for name, value in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"| {name} | {value / steps * 1000:.1f} | {value / total:.1%} |")
    rest = total - sum(spent.values())
    print(f"| everything else | {rest / steps * 1000:.1f} | {rest / total:.1%} |")


if __name__ == "__main__":
    main()
