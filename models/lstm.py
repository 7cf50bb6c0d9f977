"""A word-level language model: embedding, LSTM layers, a linear layer over the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

PAD = 0
"""The token number of padding."""


class NextWords(NamedTuple):
    """Predictions of a batch of texts, one row a predicted token: scores (tokens, vocabulary) and truth (tokens,)."""

    scores: Tensor
    truth: Tensor


class WordLSTM(nn.Module):
    """A language model that predicts each next token of a text from those before it.

    Args:
        vocabulary: number of tokens, padding (0) included.
        width: of the embedding and of each LSTM layer.
        layers: number of LSTM layers.
    """

    def __init__(self, vocabulary: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.out = nn.Linear(width, vocabulary)
        self.features = width

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> NextWords:
        """Predict tokens 2, 3, ... of each text.

        Args:
            x: token numbers, integer (n, length), padded with 0 at the end; each text has at least two tokens.
            lengths: `predicted_tokens` of the texts, on the host, the longest first, so that the host does not wait for
                the device. None: they are copied from the device, once a pass.
        """
        x = x.long()
        sorted_lengths, order = predicted_tokens(x).sort(descending=True)
        if lengths is None:
            lengths = sorted_lengths.cpu()
        # Packing spends no step and no row of scores on padding.
        inputs = self.embedding(x[:, :-1]).index_select(0, order)
        packed = pack_padded_sequence(inputs, lengths, batch_first=True)
        truth = pack_padded_sequence(x[:, 1:].index_select(0, order), lengths, batch_first=True)
        hidden, _ = self.lstm(packed)
        return NextWords(self.out(hidden.data), truth.data)


def predicted_tokens(x: Tensor) -> Tensor:
    """Return the number of predicted tokens of each text, all but the first: int64 (n,), on the device of x.

    Args:
        x: token numbers, integer (n, length), padded with 0 at the end.
    """
    return (x != PAD).sum(1).clamp(min=2) - 1


def lengths_of_batches(x: Tensor, batches: Sequence[Tensor]) -> list[Tensor]:
    """Return the lengths that `WordLSTM` takes for each batch, by one copy to the host.

    Args:
        x: token numbers of all texts, integer (n, length).
        batches: positions among them, int64, on the device of x.
    """
    if not batches:
        return []
    lengths = predicted_tokens(x)[torch.cat(list(batches))].cpu()
    return [part.sort(descending=True).values for part in lengths.split([len(each) for each in batches])]
