"""What a message must look like: its method declares the form, and nobody keeps or averages a message without it.

A client may be broken, or hostile. Its message is compared with the form before it leaves the client, and again before
the server aggregates: names, shapes, dtypes, bounds of tensors and facts, and that every number is finite. What a
message changes of the model is measured too, so that one update can be compared with those of the other clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from shoal.methods.contract.blocks import blocks
from shoal.methods.contract.message import Message, Tensors

NEVER_NEGATIVE = ("running_var", "num_batches_tracked")
"""How the names of BatchNorm's tensors end that are variances or counts."""
MOST_FACTS = 10_000
"""Numbers among the facts of a message whose method declares no form."""
MAX_DEPTH = 20
"""Levels of such facts that lie in each other."""
MAX_CHARACTERS = 1_000
"""Characters of a word among them, or of a name."""
UNBOUNDED = (-math.inf, math.inf)
LOWEST = -(2**63)
HIGHEST = 2**63 - 1
"""Bounds of every whole number of a client: what is kept in tables has 64 bits."""


@dataclass(frozen=True)
class TensorForm:
    """What a tensor of a message must be.

    Attributes:
        shape: a length each dimension; a range where several lengths are right.
        dtype: exactly.
        least, most: bounds of every value.
        start: what the client began from, of the same shape, or a stack of models of which it began from one. The
            distance from it (from the nearest) is what the message changes; None: from 0.
        difference: the tensor is itself the difference from `start`.
        measured: it is part of what the message changes, beside the other tensors.
    """

    shape: tuple[int | range, ...]
    dtype: torch.dtype = torch.float32
    least: float = -math.inf
    most: float = math.inf
    start: Tensor | None = None
    difference: bool = False
    measured: bool = True


@dataclass(frozen=True)
class FactForm:
    """What a number among the facts of a message must be.

    Attributes:
        least, most: bounds.
        whole: a whole number.
        length: a list of so many such numbers; None: one number.
        finite: not NaN or infinite.
    """

    least: float = -math.inf
    most: float = math.inf
    whole: bool = False
    length: int | None = None
    finite: bool = True


@dataclass(frozen=True)
class MessageForm:
    """What a message must be; without anything, an empty one.

    Attributes:
        tensors, facts: the form of each by name.
        samples: by name, how many raw samples may be sent as indices, at most.
        indices: how many samples there are to send: an index is below this.
        optional: names of tensors and facts that may be missing.
        others: tensors of other names may be there too.
        planted: name of the tensor that says which planted transformation each sample sent has; empty: nothing says it.
        rule: what is wrong with a message whose parts are right one by one; None: nothing.
    """

    tensors: Mapping[str, TensorForm] = field(default_factory=dict)
    facts: Mapping[str, FactForm] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)
    indices: int = 0
    optional: Collection[str] = ()
    others: bool = False
    planted: str = ""
    rule: Callable[[Message], str | None] | None = None


def exactly(number: int) -> FactForm:
    """The form of a fact that is known beforehand, such as a client's number of samples."""
    return FactForm(number, number, whole=True)


def forms_like(tensors: Tensors) -> dict[str, TensorForm]:
    """The forms of tensors that were trained from these: the same names, shapes and dtypes."""
    return {
        name: TensorForm(
            tuple(tensor.shape),
            tensor.dtype,
            least=0 if name.endswith(NEVER_NEGATIVE) else -math.inf,
            start=tensor if tensor.is_floating_point() else None,
        )
        for name, tensor in tensors.items()
    }


def fault(message: Message, form: MessageForm | None, largest: float = math.inf) -> str | None:
    """The first thing that is wrong with a message, as the end of a sentence; None: nothing.

    Args:
        message: as a client sent it: nothing of it is taken for granted.
        form: None: its method declares none. Then numbers must be finite, and facts few.
        largest: what a floating-point value without a bound of its own may be at most, either way.
    """
    found = _names_fault("tensor", message.tensors, form.tensors if form else None, form)
    found = found or _names_fault("fact", message.facts, form.facts if form else None, form)
    if found:
        return found
    for name, tensor in message.tensors.items():
        declared = form.tensors.get(name) if form else None
        if found := _tensor_fault(name, tensor, declared, largest):
            return found
    for name, value in message.facts.items():
        if found := _fact_fault(name, value, form.facts[name]) if form else _loose_fact_fault(name, value):
            return found
    for name, index in message.samples.items():
        if found := _samples_fault(name, index, form):
            return found
    return form.rule(message) if form and form.rule else None


def bounded(message: Message, form: MessageForm | None) -> Message:
    """Return a message whose floating-point values are within the bounds that its form declares."""
    tensors = dict(message.tensors)
    for name, declared in (form.tensors if form is not None else {}).items():
        if name in tensors and tensors[name].is_floating_point() and (declared.least, declared.most) != UNBOUNDED:
            tensors[name] = tensors[name].clamp(declared.least, declared.most)
    return replace(message, tensors=tensors)


def sum_fault(
    message: Message, form: MessageForm | None, clients: Sequence[int], samples: int, largest: float
) -> str | None:
    """What is wrong with a sum of messages, each of which was without fault; None: nothing.

    Args:
        message: float64 sums of tensors times `n`, and facts: the sum of `n`, and the `clients`.
        form: of each message.
        clients: whose messages should be in it, in order.
        samples: how many training samples they have together.
        largest: bound of the tensors of each message.
    """
    if message.facts.get("clients") != list(clients):
        return f"it is the sum of clients {short(message.facts.get('clients'))}, expected {short(list(clients))}"
    known = form.tensors if form is not None else {}
    wide = {
        name: replace(each, dtype=torch.float64, least=min(0.0, each.least), most=math.inf)
        for name, each in known.items()
    }
    facts = {"n": exactly(samples), "clients": FactForm(whole=True, length=len(clients))}
    summed = None if form is None else replace(form, tensors=wide, facts=facts, rule=None)
    return fault(message, summed, max(1, samples) * largest)


def change_norm(message: Message, form: MessageForm) -> float:
    """How much a message that is without fault changes: the norm of its measured tensors' distances from their start.

    Over all of them together, in their own precision: enough to compare clients by; 0 where nothing is measured.
    """
    squares = 0.0
    for name, tensor in message.tensors.items():
        declared = form.tensors.get(name)
        if declared is None or not declared.measured or not tensor.is_floating_point():
            continue
        start = None if declared.difference or declared.start is None else declared.start.to(tensor.device)
        if start is None:
            squares += float(torch.linalg.vector_norm(tensor)) ** 2
        elif start.dim() > tensor.dim():  # a stack of models to start from
            squares += min(_squared_distance(tensor, each) for each in start)
        else:
            squares += _squared_distance(tensor, start)
    return math.sqrt(squares)


def _squared_distance(left: Tensor, right: Tensor) -> float:
    """The squared distance of two tensors of one shape; on a device the host waits for it once."""
    norms = [torch.linalg.vector_norm(a - b) for a, b in blocks(left, right)]
    return float(torch.stack(norms).double().square().sum())


def start_norm(names: Iterable[str], form: MessageForm) -> float:
    """The norm of what the measured tensors of these names began from; of a stack of models, of the longest."""
    squares = 0.0
    for declared in (form.tensors[name] for name in names if name in form.tensors):
        if declared.measured and declared.start is not None:
            start = declared.start.double()
            rows = start.flatten(1) if start.dim() > len(declared.shape) else start.reshape(1, -1)
            squares += float(rows.square().sum(1).max())
    return math.sqrt(squares)


def _names_fault(
    what: str, given: Mapping[Any, Any], declared: Mapping[str, Any] | None, form: MessageForm | None
) -> str | None:
    """Names that should be there and are not, or are there and should not be."""
    if found := _any_names_fault(what, given):
        return found
    if form is None or declared is None:
        return None
    for name in declared:
        if name not in given and name not in form.optional:
            return f"{what} {name!r} is missing"
    for name in given:
        if name not in declared and not (form.others and what == "tensor"):
            expected = ", ".join(map(repr, list(declared)[:4])) or "none"
            return f"it holds a {what} {str(name)[:80]!r} that its method does not declare, expected {expected}"
    return None


def _any_names_fault(what: str, given: Mapping[Any, Any]) -> str | None:
    """Names that nothing may have, or too many."""
    if len(given) > MOST_FACTS:
        return f"it holds {len(given):,} {what}s, expected at most {MOST_FACTS:,}"
    for name in given:
        if not isinstance(name, str):
            return f"{what} {short(name)} has no name"
        if len(name) > MAX_CHARACTERS:
            return f"the name of a {what} has {len(name):,} characters, expected at most {MAX_CHARACTERS:,}"
    return None


def _tensor_fault(name: str, tensor: Any, form: TensorForm | None, largest: float) -> str | None:
    if not isinstance(tensor, Tensor):
        return f"{name!r} is a {type(tensor).__name__}, expected a tensor"
    if tensor.layout != torch.strided or tensor.is_complex() or tensor.is_quantized:
        return (
            f"tensor {name!r} has dtype {_word(tensor.dtype)} ({tensor.layout}), expected real numbers, stored densely"
        )
    if form is not None:
        if tensor.dtype != form.dtype:
            return f"tensor {name!r} has dtype {_word(tensor.dtype)}, expected {_word(form.dtype)}"
        fits = tensor.shape == form.shape or (
            len(tensor.shape) == len(form.shape)
            and all(
                size in wanted if isinstance(wanted, range) else size == wanted
                for size, wanted in zip(tensor.shape, form.shape, strict=True)
            )
        )
        if not fits:
            return f"tensor {name!r} has shape {tuple(tensor.shape)}, expected {_shape(form.shape)}"
    if not tensor.numel():
        return None
    # NaN goes through both ends, so that one pass tells all.
    low, high = (float(end) for end in torch.aminmax(tensor))
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"tensor {name!r} holds NaN or infinite values; lower local.lr or check the client's data"
    least, most = (form.least, form.most) if form is not None else (-math.inf, math.inf)
    if tensor.is_floating_point():
        least, most = max(least, -largest), min(most, largest) if most == math.inf else most
    if low < least or high > most:
        wrong = low if low < least else high
        return f"tensor {name!r} holds {wrong:g}, expected values from {least:g} to {most:g}"
    return None


def _fact_fault(name: str, value: Any, form: FactForm) -> str | None:
    if form.length is not None:
        if not isinstance(value, list | tuple) or len(value) != form.length:
            return f"fact {name!r} is {short(value)}, expected a list of {form.length} numbers"
        return next(filter(None, (_number_fault(name, one, form) for one in value)), None)
    return _number_fault(name, value, form)


def _number_fault(name: str, value: Any, form: FactForm) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int if form.whole else int | float):
        return f"fact {name!r} is {short(value)}, expected {'a whole number' if form.whole else 'a number'}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"fact {name!r} is {value}, expected a finite number" if form.finite else None
    if not form.least <= value <= form.most:
        wanted = f"{form.least:g}" if form.least == form.most else f"{form.least:g} to {form.most:g}"
        return f"fact {name!r} is {short(value)}, expected {wanted}"
    if isinstance(value, int) and not fits(value):
        return f"fact {name!r} is {short(value)}, expected a whole number from {LOWEST} to {HIGHEST}"
    return None


def _loose_fact_fault(name: str, value: Any) -> str | None:
    """Of a fact whose form nobody knows: numbers, words and lists of them, finite and not too many."""
    left, count = [(value, 0)], 0
    while left:
        one, depth = left.pop()
        count += 1
        if count > MOST_FACTS:
            return f"fact {name!r} holds more than {MOST_FACTS:,} values"
        if depth > MAX_DEPTH:
            return f"fact {name!r} holds lists in lists, more than {MAX_DEPTH} deep"
        if isinstance(one, Mapping):
            left.extend((inner, depth + 1) for pair in one.items() for inner in pair)
        elif isinstance(one, list | tuple):
            left.extend((inner, depth + 1) for inner in one)
        elif found := _loose_value_fault(one):
            return f"fact {name!r} holds {found}"
    return None


def _loose_value_fault(value: Any) -> str | None:
    """Of one value of such a fact."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}, expected finite numbers"
    if isinstance(value, int) and not fits(value):
        return f"{short(value)}, expected whole numbers from {LOWEST} to {HIGHEST}"
    if isinstance(value, str) and len(value) > MAX_CHARACTERS:
        return f"a word of {len(value):,} characters, expected at most {MAX_CHARACTERS:,}"
    if value is not None and not isinstance(value, bool | int | float | str):
        return f"a {type(value).__name__}, expected numbers or words"
    return None


def _samples_fault(name: str, index: Any, form: MessageForm | None) -> str | None:
    if form is None or name not in form.samples:
        return f"it holds samples {str(name)[:80]!r} that its method does not declare"
    if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.dim() != 1:
        return f"samples {name!r} are not a list of indices (int64)"
    if len(index) > form.samples[name]:
        return f"samples {name!r} are {len(index)}, expected at most {form.samples[name]}"
    if len(index) and not (int(index.min()) >= 0 and int(index.max()) < form.indices):
        return f"samples {name!r} name samples outside of the set, which has {form.indices}"
    return None


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(shape: tuple[int | range, ...]) -> str:
    words = [f"{size.start} to {size.stop - 1}" if isinstance(size, range) else str(size) for size in shape]
    return f"({', '.join(words)}{',' if len(words) == 1 else ''})"


def fits(value: int) -> bool:
    """Whether 64 bits hold a whole number."""
    return LOWEST <= value <= HIGHEST


def short(value: Any) -> str:
    """Return what a value is in at most 40 characters, also of numbers that cannot be printed."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a whole number of more than 40 digits"
    return text if len(text) <= 40 else text[:37] + "..."
