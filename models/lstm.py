"""A word-level language model: embedding, LSTM layers, a linear layer over the vocabulary."""

from __future__ import annotations

from typing import NamedTuple

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

    def forward(self, x: Tensor) -> NextWords:
        """Predict tokens 2, 3, ... of each text.

        Args:
            x: token numbers, integer (n, length), padded with 0 at the end; each text has at least two tokens.
        """
        x = x.long()
        lengths, order = ((x != PAD).sum(1).clamp(min=2) - 1).sort(descending=True)
        # Packed: no step and no row of scores is spent on padding. The host needs the lengths: its one wait a pass.
        of_host = lengths.cpu()
        ordered = (part.index_select(0, order) for part in (self.embedding(x[:, :-1]), x[:, 1:]))
        packed, truth = (pack_padded_sequence(part, of_host, batch_first=True) for part in ordered)
        hidden, _ = self.lstm(packed)
        return NextWords(self.out(hidden.data), truth.data)
