"""Records as JSON: written without optional entries that are None, and read back only where every entry fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from shoal.core.records import BadRecord, record_from_json, record_to_json


@dataclass(frozen=True)
class Part:
    name: str
    size: int | None


@dataclass(frozen=True)
class Whole:
    share: float
    done: bool
    kind: Literal["image", "text"]
    parts: tuple[Part, ...]
    scores: Mapping[str, float]
    anything: Any
    note: str | None = None


PLAIN = {
    "share": 1,
    "done": False,
    "kind": "text",
    "parts": [{"name": "a", "size": None}, {"name": "b", "size": 2}],
    "scores": {"acc": 0.5},
    "anything": [1, {"x": None}],
}
RECORD = Whole(1, False, "text", (Part("a", None), Part("b", 2)), {"acc": 0.5}, [1, {"x": None}])


def test_a_record_is_the_same_after_json() -> None:
    assert record_from_json(Whole, PLAIN) == RECORD
    assert record_to_json(RECORD) == PLAIN, "note is left out, and the size of a part is not"
    assert record_from_json(Whole, {**PLAIN, "note": None}) == RECORD
    assert record_to_json(record_from_json(Whole, {**PLAIN, "note": "n"}))["note"] == "n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"share": "1"}, "entry share is text, expected a number"),
        ({"share": True}, "entry share is true or false, expected a number"),
        ({"done": 0}, "entry done is a whole number, expected true or false"),
        ({"kind": "vector"}, "entry kind is vector, expected image or text"),
        ({"parts": {}}, "entry parts is named entries, expected a list"),
        ({"parts": [{"name": "a"}]}, r"entry parts\[0\].size is missing"),
        ({"parts": [{"name": "a", "size": 1.5}]}, r"entry parts\[0\].size is a number, expected a whole number"),
        ({"parts": ["a"]}, r"entry parts\[0\] is text, expected named entries"),
        ({"scores": {"acc": None}}, "entry scores.acc is null, expected a number"),
        ({"scores": []}, "entry scores is a list, expected named entries"),
        ({"note": 1}, "entry note is a whole number, expected text"),
        ({"other": 1}, "entry other is unknown"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRecord, match=f"^{words}$"):
        record_from_json(Whole, {**PLAIN, **change})


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(BadRecord, match=r"^it is a list, expected named entries$"):
        record_from_json(Whole, [])
    with pytest.raises(BadRecord, match=r"^entry share is missing$"):
        record_from_json(Whole, {name: value for name, value in PLAIN.items() if name != "share"})
