"""Fine-tuning an encoder with few labels: the value of a representation where some labels are available."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core.streams import stream_seed
from shoal.methods.contract.base import Evaluation
from shoal.methods.training.local import as_input, seeded_build

EPOCHS = 30
"""Passes over the labelled samples."""
BATCH = 64
LEARNING_RATE = 1e-3


def few_labels(y: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return positions of a share of each class's samples, at least one of each class, ascending.

    Args:
        y: labels (n,).
        share: of each class.
        generator: on the CPU.
    """
    chosen = []
    for label in y.unique().tolist():
        rows = torch.nonzero(y.cpu() == label).squeeze(1)
        count = max(1, math.floor(share * len(rows)))
        chosen.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
    return torch.cat(chosen).sort().values


def finetune_accuracy(encoder: nn.Module, evaluation: Evaluation, share: float) -> float:
    """Return the test accuracy after training a copy of the encoder and a linear layer on a share of the labels.

    Training is Adam on cross-entropy, without augmentation; the weights of the last epoch count.

    Args:
        encoder: has an attribute `features`; it is not changed.
        evaluation: images with labels, and a test part.
        share: of the training labels, class by class.

    Raises:
        ValueError: no labels, or no test part.
    """
    data = evaluation.data
    train = evaluation.train
    if data.train_y is None or data.test_y is None or not len(data.test_x):
        raise ValueError("fine-tuning needs labels and a labelled test part")
    generator = evaluation.streams.torch(f"finetune {share}")
    rows = few_labels(train.y(), share, generator).to(train.index.device)
    x = as_input(train.x(rows))
    y = train.y(rows)
    test_y = data.test_y[:]
    classes = int(torch.cat([data.train_y[:], test_y]).max()) + 1
    seed = stream_seed(evaluation.streams.seed, f"finetune head {share}")
    head = seeded_build(lambda: nn.Linear(int(encoder.features), classes), seed)  # type: ignore[arg-type]
    model = nn.Sequential(copy.deepcopy(encoder), head.to(x.device)).train()
    optimiser = torch.optim.Adam(model.parameters(), LEARNING_RATE, fused=True)
    with torch.enable_grad():
        for _ in range(EPOCHS):
            order = torch.randperm(len(x), generator=generator).to(x.device)
            # BatchNorm cannot normalise a batch of one sample.
            for part in order.split(BATCH):
                if len(part) > 1 or len(x) == 1:
                    optimiser.zero_grad(set_to_none=True)
                    F.cross_entropy(model(x[part]).float(), y[part]).backward()
                    optimiser.step()
    model.eval()
    with torch.no_grad():
        parts = data.test_x[:].split(evaluation.batch)
        predicted = torch.cat([model(as_input(data.computable(part))).argmax(1) for part in parts])
    return float((predicted == test_y).float().mean())
