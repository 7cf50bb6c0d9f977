"""UIFCA with affine flows, all clients and clusters in one computation.

The same draws, steps and averages as `methods.uifca` with `flow: affine` and plain SGD, with the gradient written
out: for z = A (x - b), the mean loss has gradients mean(z (x - b)^T) - A^-T in A, and -A^T mean(z) in b. The inverse
follows A by Newton's iteration, one per step, and is computed anew in every communication round.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from data.streams import Streams
from methods.uifca import minibatches


@dataclass(frozen=True)
class AffineRun:
    """What a batched run found.

    Attributes:
        flows: (K, d * d + d), as `AffineFlow`'s vector: matrix, then shift.
        assignment: int64 (clients, points).
        assignments: the assignment at the start of each cluster round, then the final one.
        cluster_rounds: how many were carried out.
    """

    flows: Tensor
    assignment: Tensor
    assignments: tuple[Tensor, ...]
    cluster_rounds: int


def affine_losses(flows: Tensor, x: Tensor) -> Tensor:
    """-log p up to its constant, of points x (..., d) under flows (K, d * d + d): (..., K)."""
    d = x.shape[-1]
    matrix, shift = flows[:, : d * d].view(-1, d, d), flows[:, d * d :]
    z = torch.einsum("kij,...kj->...ki", matrix, x[..., None, :] - shift)
    return 0.5 * z.square().sum(-1) - torch.linalg.slogdet(matrix)[1]


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
    assignment: Tensor | None = None,
    first_round: int = 1,
) -> AffineRun:
    """Run UIFCA on clients with equally many points.

    Args:
        x: points, float32 (clients, points, d).
        starts: the K flows that every cluster round begins from, (K, d * d + d).
        seed: of the draws, as the run's.
        lr: learning rate of SGD.
        batch: points per step.
        cluster_rounds, comm_rounds, steps: T, tau and M; fewer cluster rounds where no assignment changes.
        assignment: the first one, int64 (clients, points); None: random.
        first_round: the engine's number of the first communication round.
    """
    clients, count, d = x.shape
    clusters = len(starts)
    if assignment is None:
        assignment = torch.stack(
            [
                torch.randint(clusters, (count,), generator=Streams(seed, first_round, i).torch("assignment"))
                for i in range(clients)
            ]
        )
    flat = x.reshape(-1, d)
    history = [assignment]
    flows, done = starts, 0
    for t in range(cluster_rounds):
        flows = starts
        for c in range(comm_rounds):
            round = first_round + t * comm_rounds + c
            flows = _communication_round(flat, flows, assignment, seed, round, lr, batch, steps, starts)
        done += 1
        after = affine_losses(flows, x).nan_to_num(nan=float("inf")).argmin(-1)
        history.append(after)
        if torch.equal(after, assignment):
            break
        assignment = after
    return AffineRun(flows, history[-1], tuple(history), done)


def _communication_round(
    flat: Tensor,
    flows: Tensor,
    assignment: Tensor,
    seed: int,
    round: int,
    lr: float,
    batch: int,
    steps: int,
    starts: Tensor,
) -> Tensor:
    """Local steps of every (client, cluster) with points, then the mean of each flow by points."""
    clients, count = assignment.shape
    clusters, d = len(flows), flat.shape[1]
    pairs, draws, sizes = [], [], []
    for i in range(clients):
        streams = Streams(seed, round, i)
        for k in range(clusters):
            positions = torch.nonzero(assignment[i] == k).squeeze(1)
            if len(positions):
                rows = minibatches(streams, k, len(positions), steps, batch)
                pairs.append(k)
                sizes.append(float(len(positions)))
                draws.append(positions[rows] + i * count)
    rows = torch.stack(draws, 1)  # (steps, pairs, batch)
    matrix = flows[pairs, : d * d].reshape(-1, d, d).clone()
    shift = flows[pairs, d * d :].clone()
    inverse = torch.linalg.inv(matrix)
    twice = 2 * torch.eye(d)
    for step in range(steps):
        centred = flat[rows[step]] - shift[:, None]
        z = torch.bmm(centred, matrix.transpose(1, 2))
        gradient = torch.bmm(z.transpose(1, 2), centred).div_(batch).sub_(inverse.transpose(1, 2))
        shift += lr * torch.bmm(z.mean(1, keepdim=True), matrix).squeeze(1)
        matrix -= lr * gradient
        # Newton: exact to second order in a step that is small.
        inverse = torch.bmm(inverse, twice - torch.bmm(matrix, inverse))
    trained = torch.cat((matrix.flatten(1), shift), 1).double()
    weights = torch.tensor(sizes, dtype=torch.float64) * torch.isfinite(trained).all(1)
    total = torch.zeros(clusters, dtype=torch.float64).index_add_(0, torch.tensor(pairs), weights)
    sums = torch.zeros(clusters, trained.shape[1], dtype=torch.float64)
    sums.index_add_(0, torch.tensor(pairs), trained.nan_to_num() * weights[:, None])
    means = (sums / total.clamp(min=1)[:, None]).float()
    return torch.where(total[:, None] > 0, means, starts)
