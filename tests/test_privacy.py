"""What leaves a client: the page says what is sent, and no method sends samples or labels without saying so."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shoal.data.views.augment import normalise
from shoal.methods.contract.base import Message
from shoal.methods.registry import BUILT_IN as METHODS
from tests.messages import BEGIN, END, NAMES, PAGE, PEER, UP, Sent, listen, section_of, with_tables

SETS = {"x": torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0)), "y": torch.tensor([0, 1, 1, 2, 0, 2])}


def client(labels: bool = True) -> Any:
    data = SimpleNamespace(train_y=SETS["y"] if labels else None)
    return SimpleNamespace(train=SimpleNamespace(x=lambda: SETS["x"], y=lambda: SETS["y"], data=data))


def found(**tensors: torch.Tensor) -> tuple[set[str], set[str]]:
    sent = Sent()
    sent.compare(Message(dict(tensors)), client())
    return sent.hidden, sent.labels


def test_samples_and_labels_are_recognised() -> None:
    """The comparison on messages whose answer is known."""
    x, y = SETS["x"], SETS["y"]
    noise = torch.rand(6, 16, generator=torch.Generator().manual_seed(1))
    assert found(a=noise, b=torch.zeros(6, 16), c=torch.rand(5), d=x.mean(0)) == (set(), set())
    assert found(a=x[3].flatten()) == ({"a"}, set())
    assert found(a=torch.cat([noise, normalise(x[2]).reshape(1, 16)])) == ({"a"}, set())
    assert found(a=x[1].double()[None]) == ({"a"}, set())
    assert found(a=y, b=y.float(), c=y.flip(0)) == (set(), {"a", "b"})
    without = Sent()
    without.compare(Message({"a": y}), client(labels=False))
    assert not without.labels


def test_bytes_and_shapes_are_those_of_the_largest_message() -> None:
    sent = Sent()
    sent.add(UP, Message({"w.a": torch.zeros(3), "w.b": torch.zeros(2)}, {"n": 1}, {"raw": torch.arange(2)}), 16)
    sent.add(UP, Message({"w.a": torch.zeros(4)}, {"n": [1, 2]}, {"raw": torch.arange(5)}), 16)
    told = {what: (part.tensors, part.shape, part.bytes) for (_, what), part in sent.parts.items()}
    assert told == {"w.*": (2, None, 20), "n": (0, None, 16), "raw": (0, (5,), 80)}
    assert sent.samples == {"raw"}


@pytest.mark.parametrize("name", NAMES)
def test_no_message_hides_samples_or_labels_and_the_page_is_true(home: Path, name: str) -> None:
    """Raw samples are sent only as `Message.samples`, which say so and are counted."""
    sent = listen(name)
    assert not sent.hidden
    assert not sent.labels
    assert bool(sent.samples) == (name == "cfcl")
    assert all(way == PEER for (way, what) in sent.parts if what in sent.samples)
    page = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    sections = [part.partition("\n") for part in page.split("\n### ")]
    told = [body.strip() for heading, _, body in sections if f"`{name}`" in heading]
    assert told == [section_of(name, sent)], "run `python -m tests.messages`"


def test_a_centre_of_one_sample_is_that_sample(home: Path) -> None:
    """Which the least size of k-FED's centres keeps back."""
    few = {"data": {"options": {"samples": 6}}, "local": {"batch": 4}}
    assert listen("kfed", {**few, "method": {"min_points": 1}}).hidden == {"centres"}
    assert not listen("kfed", few).hidden


def test_every_method_is_on_the_page() -> None:
    assert set(METHODS) <= set(NAMES)
    page = PAGE.read_text()
    assert with_tables(page, page.split(BEGIN)[1].split(END)[0].removeprefix("\n\n")) == page
