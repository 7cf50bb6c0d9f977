"""The language model: packed texts of any order, with lengths that the host knows or asks for."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from shoal.models.lstm import WordLSTM, lengths_of_batches, predicted_tokens

TEXTS = torch.tensor([[3, 4, 0, 0, 0], [5, 6, 7, 8, 9], [2, 3, 4, 0, 0], [9, 8, 7, 6, 0], [4, 4, 0, 0, 0]])


def model() -> WordLSTM:
    torch.manual_seed(0)
    return WordLSTM(10, 6)


def test_all_tokens_but_the_first_are_predicted() -> None:
    assert predicted_tokens(TEXTS).tolist() == [1, 4, 2, 3, 1]
    assert predicted_tokens(torch.tensor([[3, 0, 0]])).tolist() == [1], "a text of one token counts as one of two"


def test_lengths_of_batches_are_told_the_longest_first() -> None:
    batches = [torch.tensor([0, 1, 2]), torch.tensor([4, 3])]
    assert [part.tolist() for part in lengths_of_batches(TEXTS, batches)] == [[4, 2, 1], [3, 1]]
    assert lengths_of_batches(TEXTS, []) == []


def test_known_lengths_change_no_bit() -> None:
    network = model()
    for rows in (torch.tensor([0, 1, 2]), torch.tensor([4, 3]), torch.arange(5)):
        (lengths,) = lengths_of_batches(TEXTS, [rows])
        found = []
        for given in (None, lengths):
            network.zero_grad()
            scores, truth = network(TEXTS[rows], given)
            F.cross_entropy(scores, truth).backward()
            found.append([scores, truth, *(p.grad.clone() for p in network.parameters() if p.grad is not None)])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_text_is_predicted_as_if_it_were_alone() -> None:
    network = model()
    scores, truth = network(TEXTS)
    rows = sorted(map(tuple, torch.cat((truth[:, None], scores), 1).tolist()))
    single_rows = []
    for text in TEXTS:
        own = text[text != 0][None]
        one = network(own)
        single_rows += map(tuple, torch.cat((one.truth[:, None], one.scores), 1).tolist())
    torch.testing.assert_close(torch.tensor(rows), torch.tensor(sorted(single_rows)), atol=1e-6, rtol=0)
