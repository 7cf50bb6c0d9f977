"""Private updates against values worked out by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.streams import Streams
from shoal.methods.averaging.private import private_message
from shoal.methods.contract.base import ClientError, Message
from tests.noise import seeded_normal

SENT = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([[0.5]]), "count": torch.tensor(7)}


def made(changes, clip=5.0, noise=0.0, client=0):
    tensors = {name: tensor + changes[name] for name, tensor in SENT.items()}
    return private_message(
        Message(tensors, {"n": 3}), SENT, clip, noise, seeded_normal(Streams(0, 1, client).torch("privacy"))
    )


def difference(message):
    return torch.cat([(message.tensors[name] - SENT[name]).flatten().double() for name in ("w", "b")])


def test_a_long_difference_is_scaled_down_over_all_tensors_together():
    changes = {"w": torch.tensor([6.0, 0.0]), "b": torch.tensor([[8.0]]), "count": 3}
    found = made(changes)  # of length 10
    torch.testing.assert_close(difference(found), torch.tensor([3.0, 0.0, 4.0]).double())
    assert found.tensors["count"] == 7, "whole numbers leave as they came"
    assert found.facts == {"n": 3}
    assert list(found.tensors) == list(SENT)
    assert {name: t.dtype for name, t in found.tensors.items()} == {name: t.dtype for name, t in SENT.items()}
    short = made({"w": torch.tensor([0.0, 3.0]), "b": torch.tensor([[0.0]]), "count": 0})
    torch.testing.assert_close(difference(short), torch.tensor([0.0, 3.0, 0.0]).double())


@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), st.floats(0.01, 10))
def test_no_difference_is_longer_than_the_clip(values, clip):
    found = made({"w": torch.tensor(values[:2]), "b": torch.tensor([[values[2]]]), "count": 0}, clip)
    assert difference(found).norm() <= clip * (1 + 1e-5) + 1e-4


def test_noise_is_gaussian_of_the_clip_and_of_the_clients_own_stream():
    sent = {"w": torch.zeros(40_000)}
    noise = {
        client: private_message(
            Message({"w": sent["w"]}), sent, 2.0, 1.5, seeded_normal(Streams(0, 1, client).torch("privacy"))
        )
        for client in (0, 1)
    }
    again = private_message(Message({"w": sent["w"]}), sent, 2.0, 1.5, seeded_normal(Streams(0, 1, 0).torch("privacy")))
    assert torch.equal(again.tensors["w"], noise[0].tensors["w"])
    for drawn in (noise[0].tensors["w"], noise[1].tensors["w"]):
        # Standard errors of mean and deviation at 40,000 draws: 0.015 and 0.011.
        assert abs(drawn.mean()) < 0.06
        assert drawn.std().item() == pytest.approx(3.0, abs=0.045)
    assert abs(torch.corrcoef(torch.stack([n.tensors["w"] for n in noise.values()]))[0, 1]) < 0.02


def test_variances_stay_variances():
    sent = {"n.running_var": torch.full((1000,), 0.01)}
    found = private_message(Message(dict(sent)), sent, 1.0, 1.0, seeded_normal(Streams(0).torch("privacy")))
    assert (found.tensors["n.running_var"] >= 0).all()


def test_what_is_no_difference_is_refused():
    with pytest.raises(ClientError, match="also holds extra"):
        private_message(Message({"extra": torch.zeros(2)}), SENT, 1.0, 1.0, seeded_normal(Streams(0).torch("privacy")))
    with pytest.raises(ClientError, match="also holds raw"):
        private_message(
            Message({}, {}, {"raw": torch.arange(2)}), SENT, 1.0, 1.0, seeded_normal(Streams(0).torch("privacy"))
        )
