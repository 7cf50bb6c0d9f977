"""UIFCA with affine flows, all clients and clusters in one computation.

The draws, steps and averages are those of `shoal.methods.uifca.uifca` with `flow: affine` and SGD without momentum. The
gradient is written out: for z = A (x - b), the mean loss has gradients A mean((x - b) (x - b)^T) - A^-T in A, and
-A^T A mean(x - b) in b. The inverse follows A by one Newton iteration a step, and is computed exactly at the beginning
of every communication round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.uifca.flow_method import minibatches


@dataclass(frozen=True)
class AffineRun:
    """The result of a batched run.

    Attributes:
        flows: (K, d * d + d), vectors of `AffineFlow`: matrix, then shift.
        assignment: int64 (clients, points).
        assignments: the assignment at the start of each cluster round, then the final one.
        cluster_rounds: number of cluster rounds.
    """

    flows: Tensor
    assignment: Tensor
    assignments: tuple[Tensor, ...]
    cluster_rounds: int


def affine_losses(flows: Tensor, x: Tensor) -> Tensor:
    """Return -log p without its constant, of points x (..., d) under flows (K, d * d + d): (..., K)."""
    d = x.shape[-1]
    matrix = flows[:, : d * d].view(-1, d, d)
    shift = flows[:, d * d :]
    z = torch.einsum("kij,...kj->...ki", matrix, x[..., None, :] - shift)
    result: Tensor = 0.5 * z.square().sum(-1) - torch.linalg.slogdet(matrix)[1]
    return result


def run_batched(
    x: Tensor,
    starts: Tensor,
    *,
    seed: int,
    lr: float,
    batch: int,
    cluster_rounds: int,
    comm_rounds: int,
    steps: int,
) -> AffineRun:
    """Run UIFCA on clients with equally many points.

    Args:
        x: points, float32 (clients, points, d).
        starts: the K flows that every cluster round begins from, (K, d * d + d).
        seed: of the run.
        lr: learning rate of SGD.
        batch: points per step.
        cluster_rounds, comm_rounds, steps: T, tau and M; the run ends early where no assignment changes.
    """
    round = 1
    current = first_assignment(x, len(starts), seed)
    history = [current]
    flows = starts
    done = 0
    while done < cluster_rounds:
        flows = starts
        parts = _by_cluster(x, current, len(flows))
        for _ in range(comm_rounds):
            flows = _communication_round(parts, flows, seed, round, lr, batch, steps, starts)
            round += 1
        done += 1
        after = affine_losses(flows, x).nan_to_num(nan=float("inf")).argmin(-1)
        history.append(after)
        if torch.equal(after, current):
            break
        current = after
    return AffineRun(flows, history[-1], tuple(history), done)


def first_assignment(x: Tensor, clusters: int, seed: int) -> Tensor:
    """Draw a random assignment of points (clients, points, d), int64 (clients, points)."""
    generators = [Streams(seed, 1, i).torch("assignment") for i in range(len(x))]
    return torch.stack([torch.randint(clusters, (x.shape[1],), generator=generator) for generator in generators])


def _by_cluster(x: Tensor, assignment: Tensor, clusters: int) -> dict[tuple[int, int], Tensor]:
    """Return the points of each (client, cluster) that has any."""
    parts = {
        (i, k): x[i].index_select(0, torch.nonzero(labels == k).squeeze(1))
        for i, labels in enumerate(assignment)
        for k in range(clusters)
    }
    return {pair: points for pair, points in parts.items() if len(points)}


def _communication_round(
    parts: dict[tuple[int, int], Tensor],
    flows: Tensor,
    seed: int,
    round: int,
    lr: float,
    batch: int,
    steps: int,
    starts: Tensor,
) -> Tensor:
    """Take the local steps of every (client, cluster), then average each flow by points."""
    clusters = len(flows)
    d = math.isqrt(flows.shape[1])
    pairs = [k for _, k in parts]
    sizes = [len(points) for points in parts.values()]
    points = torch.cat(list(parts.values()))
    firsts = torch.tensor([0, *sizes[:-1]]).cumsum(0).tolist()
    rows = torch.stack(
        [
            first + minibatches(Streams(seed, round, i), k, size, steps, batch)
            for (i, k), size, first in zip(parts, sizes, firsts, strict=True)
        ],
        1,
    )  # (steps, pairs, batch)
    matrix = flows[pairs, : d * d].reshape(-1, d, d).clone()
    shift = flows[pairs, d * d :].clone()[:, None]
    inverse = torch.linalg.inv(matrix)
    drawn = torch.empty(len(pairs) * batch, d)
    offset = drawn.view(len(pairs), batch, d)
    mean = torch.full((len(pairs), 1, batch), 1 / batch)
    for step in rows.flatten(1):
        torch.index_select(points, 0, step, out=drawn)
        offset.sub_(shift)
        second = torch.bmm(offset.transpose(1, 2), offset)
        moved = torch.bmm(torch.bmm(mean, offset), matrix.transpose(1, 2))
        shift.baddbmm_(moved, matrix, alpha=lr)
        matrix = torch.add(matrix, inverse.transpose(1, 2), alpha=lr).baddbmm_(matrix, second, alpha=-lr / batch)
        # A Newton step: exact to second order, since the step is small.
        inverse = torch.baddbmm(inverse, torch.bmm(inverse, matrix), inverse, beta=2, alpha=-1)
    trained = torch.cat((matrix.flatten(1), shift.flatten(1)), 1).double()
    weights = torch.tensor(sizes, dtype=torch.float64) * torch.isfinite(trained).all(1)
    total = torch.zeros(clusters, dtype=torch.float64).index_add_(0, torch.tensor(pairs), weights)
    sums = torch.zeros(clusters, trained.shape[1], dtype=torch.float64)
    sums.index_add_(0, torch.tensor(pairs), trained.nan_to_num() * weights[:, None])
    averages = (sums / total.clamp(min=1)[:, None]).float()
    return torch.where(total[:, None] > 0, averages, starts)
