import numpy as np
import pytest

from shoal.core.errors import DataError
from shoal.data.sets.text import build_vocabulary, encode, tokenise


def test_tokens():
    assert tokenise("The U.S., it's #36;10\\million") == [
        *("the", "u", ".", "s", ".", ",", "it's", "#", "36", ";", "10", "million")
    ]
    assert tokenise("") == []


def test_vocabulary_is_by_frequency_then_alphabet():
    documents = [["b", "a", "c"], ["b", "a"], ["b", "d"]]
    assert build_vocabulary(documents, size=5) == ("<pad>", "<unk>", "<eos>", "b", "a")
    assert build_vocabulary(documents, size=100, frequency=2)[3:] == ("b", "a")
    with pytest.raises(DataError, match="no room"):
        build_vocabulary(documents, size=3)


def test_encoding():
    vocabulary = build_vocabulary([["a", "b"]], size=10)
    encoded = encode([["a", "z"], ["b"] * 9, []], vocabulary, 4)
    assert encoded.dtype == np.int32
    assert encoded.tolist() == [[3, 1, 2, 0], [4, 4, 4, 2], [2, 0, 0, 0]]
    with pytest.raises(DataError, match="at least 2"):
        encode([["a"]], vocabulary, 1)
