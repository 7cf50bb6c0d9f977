"""Text as int32 sequences of one length: tokens, a vocabulary of the training part, padding."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from shoal.core.errors import DataError

PAD = "<pad>"
UNKNOWN = "<unk>"
END = "<eos>"
SPECIAL = (PAD, UNKNOWN, END)
_TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[^\w\s]")


def tokenise(text: str) -> list[str]:
    r"""Split a text into lower-case words and single punctuation marks; backslashes, its line breaks, are dropped.

    >>> tokenise("Oil prices\\soar, it's said.")
    ['oil', 'prices', 'soar', ',', "it's", 'said', '.']
    """
    return _TOKEN.findall(text.lower().replace("\\", " "))


def build_vocabulary(documents: Iterable[Sequence[str]], *, size: int, frequency: int = 1) -> tuple[str, ...]:
    """Return <pad> (0), <unk> (1), <eos> (2), then the most frequent tokens; ties are in alphabetical order.

    Args:
        documents: tokens of each training document.
        size: largest number of entries, including the three special ones.
        frequency: tokens seen less often are left out.

    Raises:
        DataError: `size` has no room for a word.
    """
    if size <= len(SPECIAL):
        raise DataError(f"a vocabulary of {size} entries has no room for words: set at least {len(SPECIAL) + 1}")
    counts = Counter(token for document in documents for token in document)
    kept = sorted((-count, token) for token, count in counts.items() if count >= frequency)
    return (*SPECIAL, *(token for _, token in kept[: size - len(SPECIAL)]))


def encode(documents: Sequence[Sequence[str]], vocabulary: Sequence[str], length: int) -> np.ndarray:
    """Return token numbers, int32 (documents, length): at most length - 1 tokens, <eos>, then <pad>.

    Raises:
        DataError: `length` has no room for a token and <eos>.
    """
    if length < 2:
        raise DataError(f"sequences of length {length} have no room for a word and {END}: set at least 2")
    number = {token: i for i, token in enumerate(vocabulary)}
    unknown = number[UNKNOWN]
    encoded = np.full((len(documents), length), number[PAD], dtype=np.int32)
    for row, document in zip(encoded, documents, strict=True):
        numbers = [number.get(token, unknown) for token in document[: length - 1]]
        row[: len(numbers)] = numbers
        row[len(numbers)] = number[END]
    return encoded
