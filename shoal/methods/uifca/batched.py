"""UIFCA with affine flows, all clients and clusters in one computation.

The same draws, steps and averages as `shoal.methods.uifca.uifca` with `flow: affine` and plain SGD, with the gradient
written out: for z = A (x - b), the mean loss has gradients A mean((x - b) (x - b)^T) - A^-T in A, and -A^T A mean(x -
b) in b. The inverse follows A by Newton's iteration, one per step, and is computed anew in every communication round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.uifca.flow_method import minibatches
from shoal.methods.uifca.held_out import fold


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
    folds: int = 1,
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
        tries, trial, folds: as `UIFCASettings`; with an `assignment` there is one try.

    Raises:
        ValueError: the tries leave none of the cluster rounds, or come with folds.
    """
    if tries > 1 and folds > 1:
        raise ValueError("tries are of random first assignments without folds")
    if tries > 1 and tries * trial >= cluster_rounds:
        raise ValueError(f"{tries} tries of {trial} cluster rounds leave none of {cluster_rounds}")
    learn = _Learner(x, starts, seed, lr, batch, comm_rounds, steps, first_round, folds)
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
    """Cluster rounds from any assignment; `round` counts communication rounds as the engine does."""

    x: Tensor
    starts: Tensor
    seed: int
    lr: float
    batch: int
    comm_rounds: int
    steps: int
    round: int
    folds: int = 1

    def draw(self) -> Tensor:
        """A random assignment, int64 (clients, points)."""
        clients, count = self.x.shape[:2]
        return torch.stack(
            [
                torch.randint(
                    len(self.starts), (count,), generator=Streams(self.seed, self.round, i).torch("assignment")
                )
                for i in range(clients)
            ]
        )

    def kept(self, cluster_round: int) -> Tensor:
        """Points that a cluster round keeps from training, bool (clients, points)."""
        clients, count = self.x.shape[:2]
        kept = torch.zeros(clients, count, dtype=torch.bool)
        if self.folds > 1:
            for i, row in enumerate(kept):
                row[fold(self.seed, i, count, self.folds, cluster_round)] = True
        return kept

    def run(self, assignment: Tensor, cluster_rounds: int, last: bool = False) -> AffineRun:
        """At most so many cluster rounds, until no assignment changes; where not `last`, a round of judging follows."""
        history, flows, done, still = [assignment], self.starts, 0, 0
        while done < cluster_rounds:
            flows = self.starts
            kept = self.kept(done)
            parts = _by_cluster(self.x, assignment.masked_fill(kept, -1), len(flows))
            for _ in range(self.comm_rounds):
                flows = _communication_round(
                    parts, flows, self.seed, self.round, self.lr, self.batch, self.steps, self.starts
                )
                self.round += 1
            done += 1
            after = affine_losses(flows, self.x).nan_to_num(nan=float("inf")).argmin(-1)
            if self.folds > 1:
                after = torch.where(kept, after, assignment)
            history.append(after)
            still = still + 1 if torch.equal(after, assignment) else 0
            if still == self.folds:  # each part of the points has had its turn
                # The engine hears of it in the round after.
                self.round += done < cluster_rounds
                break
            assignment = after
        self.round += not last
        return AffineRun(flows, history[-1], tuple(history), done)


def _by_cluster(x: Tensor, assignment: Tensor, clusters: int) -> dict[tuple[int, int], Tensor]:
    """Each client's points of each cluster that has any."""
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
    """Local steps of every (client, cluster) with points, then the mean of each flow by points."""
    clusters, d = len(flows), math.isqrt(flows.shape[1])
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
    off = drawn.view(len(pairs), batch, d)
    mean = torch.full((len(pairs), 1, batch), 1 / batch)
    for step in rows.flatten(1):
        torch.index_select(points, 0, step, out=drawn)
        off.sub_(shift)
        second = torch.bmm(off.transpose(1, 2), off)
        moved = torch.bmm(torch.bmm(mean, off), matrix.transpose(1, 2))
        shift.baddbmm_(moved, matrix, alpha=lr)
        matrix = torch.add(matrix, inverse.transpose(1, 2), alpha=lr).baddbmm_(matrix, second, alpha=-lr / batch)
        # Newton: exact to second order in a step that is small.
        inverse = torch.baddbmm(inverse, torch.bmm(inverse, matrix), inverse, beta=2, alpha=-1)
    trained = torch.cat((matrix.flatten(1), shift.flatten(1)), 1).double()
    weights = torch.tensor(sizes, dtype=torch.float64) * torch.isfinite(trained).all(1)
    total = torch.zeros(clusters, dtype=torch.float64).index_add_(0, torch.tensor(pairs), weights)
    sums = torch.zeros(clusters, trained.shape[1], dtype=torch.float64)
    sums.index_add_(0, torch.tensor(pairs), trained.nan_to_num() * weights[:, None])
    averages = (sums / total.clamp(min=1)[:, None]).float()
    return torch.where(total[:, None] > 0, averages, starts)
