"""What a message must be: by hand, and for every method what honest clients send and what hostile ones make of it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from shoal.core.streams import Streams
from shoal.engine.messages.client_numbers import metrics_fault
from shoal.engine.messages.inspection import too_large
from shoal.methods.contract.base import Client, Federation, Message, Method, Update
from shoal.methods.contract.declared import (
    FactForm,
    MessageForm,
    TensorForm,
    change_norm,
    exactly,
    fault,
    forms_like,
    start_norm,
    unfit,
)
from shoal.methods.registry import BUILT_IN as METHODS
from shoal.methods.training.steps import GradientMethod
from tests.hostile_updates import SPOILT

FORM = MessageForm(
    {"w": TensorForm((2, 3)), "rows": TensorForm((range(1, 3), 2), torch.float64, minimum=0)},
    {"n": exactly(12), "shares": FactForm(0, 1, length=2), "loss": FactForm(finite=False)},
    {"raw": 3},
    10,
    ("rows", "loss"),
)


def message(**changes: Any) -> Message:
    tensors = {"w": torch.ones(2, 3), "rows": torch.ones(1, 2, dtype=torch.float64)}
    facts = {"n": 12, "shares": [0.5, 0.25], "loss": math.inf}
    tensors |= {k: v for k, v in changes.items() if k in tensors or k == "x"}
    facts |= {k: v for k, v in changes.items() if k in facts or k == "y"}
    samples = {"raw": changes.get("raw", torch.tensor([0, 9]))}
    return Message({k: v for k, v in tensors.items() if v is not None}, facts, samples)


def test_what_is_as_declared_is_without_fault() -> None:
    assert fault(message(), FORM) is None
    assert fault(message(rows=None), FORM) is None
    assert fault(message(rows=torch.zeros(2, 2, dtype=torch.float64), shares=(0, 1), loss=3), FORM) is None
    assert fault(Message(), MessageForm()) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"w": None}, "tensor 'w' is missing"),
        ({"x": torch.ones(1)}, "holds a tensor 'x' that its method does not declare, expected 'w', 'rows'"),
        ({"y": 1}, "holds a fact 'y' that its method does not declare"),
        ({"w": [1.0]}, "'w' is a list, expected a tensor"),
        ({"w": torch.ones(2, 3).double()}, "tensor 'w' has dtype float64, expected float32"),
        ({"w": torch.ones(2, 3, dtype=torch.int8)}, "has dtype int8, expected float32"),
        ({"w": torch.ones(2, 3, dtype=torch.complex64)}, "has dtype complex64.*expected real numbers"),
        ({"w": torch.ones(2, 3).to_sparse()}, "expected real numbers, stored densely"),
        ({"w": torch.ones(3, 2)}, r"has shape \(3, 2\), expected \(2, 3\)"),
        ({"w": torch.ones(6)}, r"has shape \(6,\), expected \(2, 3\)"),
        ({"rows": torch.ones(3, 2, dtype=torch.float64)}, r"expected \(1 to 2, 2\)"),
        ({"rows": -torch.ones(1, 2, dtype=torch.float64)}, "holds -1, expected values from 0 to"),
        ({"w": torch.full((2, 3), math.nan)}, "'w' holds NaN or infinite values; lower local.lr"),
        ({"w": torch.tensor([[1.0, 2, 3], [4, 5, -math.inf]])}, "'w' holds NaN or infinite values"),
        ({"w": torch.full((2, 3), 2e12)}, r"holds 2e\+12, expected values from -1e\+12 to 1e\+12"),
        ({"n": 13}, "fact 'n' is 13, expected 12"),
        ({"n": True}, "fact 'n' is True, expected a whole number"),
        ({"n": 12.0}, "fact 'n' is 12.0, expected a whole number"),
        ({"n": "12"}, "fact 'n' is '12', expected a whole number"),
        ({"n": 10**5000}, "fact .n. is too long to print, expected 12"),
        ({"shares": 0.5}, "expected a list of 2 numbers"),
        ({"shares": [10**5000]}, "too long to print, expected a list of 2 numbers"),
        ({"shares": [0.5, 1.5]}, "'shares' is 1.5, expected 0 to 1"),
        ({"shares": [0.5, math.nan]}, "'shares' is nan, expected a finite number"),
        ({"raw": torch.tensor([10])}, "samples outside of the set, which has 10"),
        ({"raw": torch.tensor([-1])}, "samples outside of the set"),
        ({"raw": torch.arange(4)}, "'raw' are 4, expected at most 3"),
        ({"raw": torch.tensor([0.5])}, "not a list of indices"),
    ],
)
def test_every_fault_is_named(changes: dict[str, Any], words: str) -> None:
    found = fault(message(**changes), FORM, 1e12)
    assert found is not None
    assert re.search(words, found), found


def test_what_no_form_allows() -> None:
    assert unfit(Message({"a": torch.ones(2)}, {"n": 3, "words": ["x", None, {"deep": 1.5}]})) is None
    endless: list[Any] = []
    endless.append(endless)
    for wrong, words in (
        (Message({"a": torch.tensor(math.nan)}), "NaN"),
        (Message({"a": torch.full((1,), 2e12)}), r"expected values from -1e+12"),
        (Message(facts={"n": math.inf}), "is inf, expected finite numbers or words"),
        (Message(facts={"n": endless}), "expected finite numbers or words"),
        (Message(facts={"n": object()}), "expected finite numbers or words"),
        (Message(facts={"n" * 2000: 1}), "has 2,000 characters"),
    ):
        assert words in (unfit(wrong, 1e12) or "")


def test_a_rule_is_asked_last() -> None:
    form = replace(FORM, rule=lambda m: "odd" if m.facts["n"] == 12 else None)
    assert fault(message(), form) == "odd"
    assert fault(message(w=None), form) == "tensor 'w' is missing"


def test_forms_are_those_of_the_tensors() -> None:
    tensors = {"w": torch.ones(2), "norm.running_var": torch.ones(2), "norm.num_batches_tracked": torch.tensor(3)}
    form = MessageForm(forms_like(tensors))
    assert fault(Message(tensors), form) is None
    assert "expected values from 0" in (fault(Message({**tensors, "norm.running_var": -torch.ones(2)}), form) or "")
    assert "from 0" in (fault(Message({**tensors, "norm.num_batches_tracked": torch.tensor(-1)}), form) or "")


def test_norms_by_hand() -> None:
    start = torch.tensor([1.0, 2.0])
    stack = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    forms = {
        "weights": TensorForm((2,), start=start),
        "update": TensorForm((2,), start=torch.tensor([6.0, 8.0]), difference=True),
        "any": TensorForm((2,), start=stack),
        "sums": TensorForm((2,)),
        "aside": TensorForm((2,), measured=False),
        "count": TensorForm((), torch.int64),
    }
    form = MessageForm(forms)

    def norms(**tensors: torch.Tensor) -> tuple[float, float]:
        return change_norm(Message(dict(tensors)), form), start_norm(tensors, form)

    assert norms(weights=torch.tensor([4.0, 6.0])) == (5.0, pytest.approx(math.sqrt(5)))
    assert norms(update=torch.tensor([3.0, 4.0])) == (5.0, 10.0)
    assert norms(any=torch.tensor([3.0, 5.0])) == (1.0, 5.0)
    assert norms(sums=torch.tensor([3.0, 4.0])) == (5.0, 0.0)
    assert norms(aside=torch.tensor([3.0, 4.0]), count=torch.tensor(7)) == (0.0, 0.0)
    assert norms(weights=start + 3, update=torch.tensor([0.0, 4.0]))[0] == pytest.approx(math.sqrt(18 + 16))


# --- every method -----------------------------------------------------------------------------------------------------

FEW = {
    "cfcl": {"steps": 4, "tau_a": 2, "tau_p": 2, "reserve": 4, "budget": 3},
    "fedsimclr_kmeans": {"kmeans_rounds": 3, "starts": 2},
    # Without moments nothing says how far samples may lie from all centres.
    "fedkmeans": {"standardise": True},
    "fedgmm": {"standardise": True},
    "uifca": {"init": "kfed", "cluster_rounds": 2, "comm_rounds": 2},
    "cfl": {"criterion": "absolute"},
}
"""Settings with which a method goes through its phases in few rounds."""
PLAUSIBLE = ("times 1,000", "times -1,000,000", "means drawn aside")
"""Numbers like others: only beside other clients' do they look odd."""
OF_OTHERS = ("to peers samples of others", "to peers other transformations")
"""Of right form: only who holds which samples tells that they are wrong
(`shoal.engine.messages.inspection.not_held`)."""
HARMLESS = ("memory", "to ")


def rounds_of(world: Any, method: Method, *, together: bool = False) -> Any:
    """Rounds of three honest clients: for each the state before, and samples and update of each client.

    Either one by one, or all `together`: in one computation where the method has one.
    """
    parts = [world.client(k, every=3) for k in range(3)]
    sizes = tuple(len(part.train) for part in parts)
    server = method.init_server(Federation(world.spec, sizes, Streams(0)))
    memories: dict[int, dict[str, torch.Tensor]] = {0: {}, 1: {}, 2: {}}
    inboxes: dict[int, list[tuple[int, Message]]] = {0: [], 1: [], 2: []}
    for round in range(1, 6):
        if server.finished:
            return
        cohort = []
        for part in parts:
            inbox, inboxes[part.id] = tuple(inboxes[part.id]), []
            client = Client(part.id, part.train, part.validation, memories[part.id], inbox, Streams(0, round, part.id))
            cohort.append((method.broadcast(server, part.id), client))
        found = method.cohort_update(cohort) if together else [method.client_update(*each) for each in cohort]
        updates = []
        for (_, client), update in zip(cohort, found, strict=True):
            assert isinstance(update, Update), update
            updates.append(replace(update, client=client.id))
            memories[client.id] = memories[client.id] if update.memory is None else update.memory
        for update in updates:
            for peer, sent in update.peers.items():
                inboxes[peer].append((update.client, sent))
        yield server, [(len(part.train), update) for part, update in zip(parts, updates, strict=True)]
        server = method.aggregate(server, iter(updates[:1] if method.pooled else updates))


def first_fault(method: Method, server: Any, samples: int, update: Update) -> str | None:
    """What is wrong with a whole answer."""
    found = fault(update.message, method.declared(server, update.client, samples), 1e12)
    for peer, sent in update.peers.items():
        form = method.declared_to_peer(server, update.client, peer)
        found = found or ("nothing may be sent" if form is None else fault(sent, form, 1e12))
    if update.memory is not None:
        memory = method.declared_memory(server, update.client, samples)
        kept = Message(update.memory)
        found = found or too_large(update.memory)
        found = found or (unfit(kept, 1e12) if memory is None else fault(kept, memory, 1e12))
    return found or method.mismatch(update) or metrics_fault(update.metrics)


@pytest.mark.parametrize("name", METHODS)
def test_honest_answers_are_without_fault_and_spoilt_ones_are_not(world: Any, name: str) -> None:
    method = world.method(name, rounds=4, epochs=1, **FEW.get(name, {}))
    count = 0
    for server, answers in rounds_of(world, method):
        for samples, update in answers:
            assert method.declared(server, update.client, samples) is not None, "every method says what it is sent"
            assert first_fault(method, server, samples, update) is None
        samples, update = answers[0]
        for kind, spoil in SPOILT.items():
            spoilt = spoil(update)
            if spoilt is update or kind in (*PLAUSIBLE, *OF_OTHERS):
                continue
            count += 1
            assert first_fault(method, server, samples, spoilt), kind
    assert count > 5


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if issubclass(kind, GradientMethod)])
def test_answers_of_one_computation_are_without_fault_in_every_round(world: Any, name: str) -> None:
    """Also in rounds that take no gradient step, of which the computation of several clients knows nothing."""
    method = world.method(name, rounds=4, epochs=1, **FEW.get(name, {}))
    for server, answers in rounds_of(world, method, together=True):
        assert [first_fault(method, server, samples, update) for samples, update in answers] == [None] * len(answers)


def test_what_goes_together_is_looked_at_together(world: Any) -> None:
    method = world.method("fedsimclr_kmeans", rounds=4, kmeans_rounds=3)
    server = replace(world.start(method, 3), round=1)
    form = method.declared(server, 0, 5)
    (width,), double = form.tensors["total"].shape, torch.float64
    outer = torch.eye(width, dtype=double)
    sent = {"samples": torch.tensor(5.0, dtype=double), "total": torch.zeros(width, dtype=double), "outer": outer}
    assert fault(Message(sent), form) is None
    assert "negative sums of squares" in (fault(Message({**sent, "outer": -outer}), form) or "")
    server = server.with_model({"kmeans.mean": torch.zeros(width), "kmeans.projection": torch.zeros(width, 2)})
    form = method.declared(server, 0, 5)
    centres, counts = torch.full((3, 2), 0.5, dtype=double), torch.ones(3, dtype=double)
    assert fault(Message({"centres": centres, "counts": counts}), form) is None
    assert "3 centres and 2 counts" in (fault(Message({"centres": centres, "counts": counts[:2]}), form) or "")
