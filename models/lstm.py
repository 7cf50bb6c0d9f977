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
    """Predicts each next token of a text from those before it.

    Args:
        vocabulary: number of tokens, padding (0) included.
        width: of the embedding and of each LSTM layer.
        layers: LSTM layers.
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
            lengths: `predicted_tokens` of the texts, on the host, the longest first: where they are known there, the
                host waits for nothing. None: it asks the device, once a pass.
        """
        x = x.long()
        found, order = predicted_tokens(x).sort(descending=True)
        # Packed: no step and no row of scores is spent on padding.
        of_host = found.cpu() if lengths is None else lengths
        ordered = (part.index_select(0, order) for part in (self.embedding(x[:, :-1]), x[:, 1:]))
        packed, truth = (pack_padded_sequence(part, of_host, batch_first=True) for part in ordered)
        hidden, _ = self.lstm(packed)
        return NextWords(self.out(hidden.data), truth.data)


def predicted_tokens(x: Tensor) -> Tensor:
    """How many tokens of each text are predicted: all but the first, int64 (n,), where x is.

    Args:
        x: token numbers, integer (n, length), padded with 0 at the end.
    """
    return (x != PAD).sum(1).clamp(min=2) - 1


def lengths_of_batches(x: Tensor, batches: Sequence[Tensor]) -> list[Tensor]:
    """What `WordLSTM` takes as the lengths of each batch, in one copy to the host.

    Args:
        x: token numbers of all texts, integer (n, length).
        batches: positions into them, int64, where x is.
    """
    if not batches:
        return []
    lengths = predicted_tokens(x)[torch.cat(list(batches))].cpu()
    return [part.sort(descending=True).values for part in lengths.split([len(each) for each in batches])]
