"""Fine-tuning an encoder with few labels."""

import pytest
import torch

from shoal_research.ssd.finetuning import few_labels, finetune_accuracy


def test_few_labels_are_balanced():
    y = torch.tensor([0] * 100 + [1] * 50 + [2] * 3)
    rows = few_labels(y, 0.1, torch.Generator().manual_seed(0))
    assert y[rows].bincount().tolist() == [10, 5, 1]
    assert torch.equal(rows, few_labels(y, 0.1, torch.Generator().manual_seed(0)))


def test_fine_tuning_leaves_the_encoder_and_needs_labels(world, make_world):
    method = world.method("fedsimclr")
    encoder = method.network().encoder
    before = {k: t.clone() for k, t in encoder.state_dict().items()}
    accuracy = finetune_accuracy(encoder, world.evaluation(), 0.25)
    assert accuracy >= 0.9
    assert all(torch.equal(t, before[k]) for k, t in encoder.state_dict().items())
    assert accuracy == finetune_accuracy(encoder, world.evaluation(), 0.25)
    with pytest.raises(ValueError, match="labels"):
        finetune_accuracy(encoder, make_world(labels=False).evaluation(), 0.1)
