"""Files of an evaluation: the predictions of each part of the samples, and the tensors that replace a state's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch

from shoal.core.durable import private_folder
from shoal.engine.messages.wire import Evaluate, EvaluateShard
from shoal.engine.store.codec import PRIVATE, load_tensors, save_tensors
from shoal.engine.store.round_paths import JUDGED, RoundPaths
from shoal.methods.contract.message import Tensors
from shoal.methods.contract.prediction import ShardPredictions


def judged_tensors(server: Path, device: str) -> Tensors:
    """Return the tensors that replace those of a state in its evaluation, from the file beside it; empty without one.

    Raises:
        StoreError: the file is damaged.
    """
    path = server.parent / JUDGED
    if not path.exists():
        return {}
    return load_tensors(path, device)[0]


def save_shard(request: EvaluateShard, predictions: Iterable[ShardPredictions]) -> None:
    """Write the predictions of a part.

    Raises:
        StoreError: the disk is full.
    """
    paths = RoundPaths(request.run, request.round)
    parts = list(predictions)
    tensors = {}
    if parts:
        tensors = {
            "cluster": torch.cat([part.cluster for part in parts]),
            "embedding": torch.cat([part.embedding for part in parts]),
        }
    private_folder(paths.work)
    path = paths.predictions(request.part)
    save_tensors(path, tensors, [part.columns for part in parts][-1:], sync=False, mode=PRIVATE)


def read_shards(request: Evaluate, device: str) -> Callable[[], Iterator[ShardPredictions]]:
    """Return a function that reads the predictions of all parts, in order."""

    def read() -> Iterator[ShardPredictions]:
        for part in range(request.parts):
            path = RoundPaths(request.run, request.round).predictions(part)
            tensors, columns = load_tensors(path, device)
            if columns:  # a part may have no batch if batches are few
                yield ShardPredictions(tensors["cluster"].cpu(), columns[0], tensors["embedding"])

    return read
