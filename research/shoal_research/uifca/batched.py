"""UIFCA with affine flows, all clients and clusters in one computation.

The draws, steps and averages are those of `shoal.methods.uifca.uifca` with `flow: affine` and SGD without momentum. The
gradient is written out: for z = A (x - b), the mean loss has gradients A mean((x - b) (x - b)^T) - A^-T in A, and
-A^T A mean(x - b) in b. The inverse follows A by one Newton iteration a step, and is computed exactly at the beginning
of every communication round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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
    assignment: Tensor | None = None,
    first_round: int = 1,
    tries: int = 1,
    trial: int = 4,
) -> AffineRun:
    """Run UIFCA on clients with equally many points.

    Args:
        x: points, float32 (clients, points, d).
        starts: the K flows that every cluster round begins from, (K, d * d + d).
        seed: of the run.
        lr: learning rate of SGD.
        batch: points per step.
        cluster_rounds, comm_rounds, steps: T, tau and M; the run ends early where no assignment changes.
        assignment: the first one, int64 (clients, points); None: random.
        first_round: the engine's number of the first communication round.
        tries: number of random first assignments, each learned for `trial` cluster rounds; the run goes on with the one
            of the lowest loss. With an `assignment` there is one try.
        trial: see `tries`.

    Raises:
        ValueError: the tries leave none of the cluster rounds.
    """
    if tries > 1 and tries * trial >= cluster_rounds:
        raise ValueError(f"{tries} tries of {trial} cluster rounds leave none of {cluster_rounds}: lower tries")
    learn = _Learner(x, starts, seed, lr, batch, comm_rounds, steps, first_round)
    if assignment is not None or tries == 1:
        return learn.run(learn.draw() if assignment is None else assignment, cluster_rounds, last=True)
    tried = []
    for _ in range(tries):
        run = learn.run(learn.draw(), trial)
        loss = affine_losses(run.flows, x).nan_to_num(nan=float("inf")).amin(-1).double().mean()
        tried.append((float(loss), run))
    spent = sum(run.cluster_rounds for _, run in tried)
    best = min(tried, key=lambda pair: pair[0])[1]
    if torch.equal(best.assignments[-2], best.assignment):
        return replace(best, cluster_rounds=spent)
    run = learn.run(best.assignment, cluster_rounds - spent, last=True)
    return replace(run, assignments=best.assignments + run.assignments[1:], cluster_rounds=spent + run.cluster_rounds)


@dataclass
class _Learner:
    """Cluster rounds from any assignment; `round` is the engine's number of a communication round."""

    x: Tensor
    starts: Tensor
    seed: int
    lr: float
    batch: int
    comm_rounds: int
    steps: int
    round: int

    def draw(self) -> Tensor:
        """Draw a random assignment, int64 (clients, points)."""
        clients, count = self.x.shape[:2]
        rows = []
        for i in range(clients):
            generator = Streams(self.seed, self.round, i).torch("assignment")
            rows.append(torch.randint(len(self.starts), (count,), generator=generator))
        return torch.stack(rows)

    def run(self, assignment: Tensor, cluster_rounds: int, last: bool = False) -> AffineRun:
        """Run cluster rounds until no assignment changes; unless `last`, a round that judges the try follows."""
        history = [assignment]
        flows = self.starts
        done = 0
        while done < cluster_rounds:
            flows = self.starts
            parts = _by_cluster(self.x, assignment, len(flows))
            for _ in range(self.comm_rounds):
                flows = _communication_round(
                    parts, flows, self.seed, self.round, self.lr, self.batch, self.steps, self.starts
                )
                self.round += 1
            done += 1
            after = affine_losses(flows, self.x).nan_to_num(nan=float("inf")).argmin(-1)
            history.append(after)
            if torch.equal(after, assignment):
                # The engine takes one more round to notice.
                self.round += done < cluster_rounds
                break
            assignment = after
        self.round += not last
        return AffineRun(flows, history[-1], tuple(history), done)


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
