"""The form of a message, which its method declares, and the faults of a message that does not have that form.

A client may be broken, or hostile. Its message is compared with the form before the server aggregates: names, shapes,
dtypes, bounds of tensors and facts, and that every number is finite. How much a message changes the model is measured
too, so that one update can be compared with those of the other clients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from shoal.methods.contract.message import Message, Tensors

NEVER_NEGATIVE = ("running_var", "num_batches_tracked")
"""Endings of the names of BatchNorm's tensors that are variances or counts."""
MAX_NAMES = 10_000
"""Names of tensors or facts in a message."""
MAX_CHARACTERS = 1_000
"""Characters of a name."""
UNBOUNDED = (-math.inf, math.inf)
MIN_INT64 = -(2**63)
MAX_INT64 = 2**63 - 1
"""Bounds of every whole number of a client: tables keep 64 bits."""


@dataclass(frozen=True)
class TensorForm:
    """The form of a tensor of a message.

    Attributes:
        shape: a length for each dimension; a range where several lengths are right.
        dtype: its dtype, exactly.
        minimum, maximum: bounds of every value.
        start: the tensor that the client began from, of the same shape, or a stack of models of which it began from
            one. The message changes the model by the distance from it (from the nearest); None: from 0.
        difference: the tensor is itself the difference from `start`.
        measured: the tensor counts in how much the message changes the model.
    """

    shape: tuple[int | range, ...]
    dtype: torch.dtype = torch.float32
    minimum: float = -math.inf
    maximum: float = math.inf
    start: Tensor | None = None
    difference: bool = False
    measured: bool = True


UNBOUNDED_FORM = TensorForm(())
"""The form whose bounds hold for a tensor without a declared form."""


@dataclass(frozen=True)
class FactForm:
    """The form of a number, or of a list of numbers, among the facts of a message.

    Attributes:
        minimum, maximum: bounds of every number.
        whole: whether numbers must be whole.
        length: length of the list; None: the fact is one number.
        finite: whether NaN and infinite numbers are refused.
    """

    minimum: float = -math.inf
    maximum: float = math.inf
    whole: bool = False
    length: int | None = None
    finite: bool = True


@dataclass(frozen=True)
class MessageForm:
    """The form of a message; by default of an empty one.

    Attributes:
        tensors, facts: the form of each by name.
        samples: by name, the largest number of raw samples that may be sent as indices.
        indices: number of samples in the training set: an index is below this.
        optional: names of tensors and facts that may be missing.
        others: whether tensors of other names may be in the message too.
        rule: finds the fault of a message whose parts are right one by one, or returns None.
    """

    tensors: Mapping[str, TensorForm] = field(default_factory=dict)
    facts: Mapping[str, FactForm] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)
    indices: int = 0
    optional: Collection[str] = ()
    others: bool = False
    rule: Callable[[Message], str | None] | None = None


def exactly(number: int) -> FactForm:
    """Return the form of a fact whose value the server knows, such as a client's number of samples."""
    return FactForm(number, number, whole=True)


def forms_like(tensors: Tensors) -> dict[str, TensorForm]:
    """Return the forms of tensors that were trained from these: the same names, shapes and dtypes."""
    return {
        name: TensorForm(
            tuple(tensor.shape),
            tensor.dtype,
            minimum=0 if name.endswith(NEVER_NEGATIVE) else -math.inf,
            start=tensor if tensor.is_floating_point() else None,
        )
        for name, tensor in tensors.items()
    }


def fault(message: Message, form: MessageForm, largest: float = math.inf) -> str | None:
    """Return the first fault of a message, as the end of a sentence; None: it has none.

    Args:
        message: as a client sent it; nothing in it is trusted.
        form: the declared form.
        largest: bound of the absolute value of floating-point numbers whose form has none.
    """
    return next(_faults(message, form, largest), None)


def unfit(message: Message, largest: float = math.inf) -> str | None:
    """Return why no form allows a message, raw samples aside; None: one may. Arguments as of `fault`."""
    return next(_unfit(message, largest), None)


def _unfit(message: Message, largest: float) -> Iterator[str]:
    """Yield the faults of names, of tensors that are not finite, and of facts that are no JSON."""
    yield from _bad_names("tensor", message.tensors)
    yield from _bad_names("fact", message.facts)
    for name, tensor in message.tensors.items():
        yield from _tensor_faults(name, tensor, None, largest)
    for name, value in message.facts.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            yield f"fact {name!r} is {short(value)}, expected finite numbers or words"


def _faults(message: Message, form: MessageForm, largest: float) -> Iterator[str]:
    """Yield the faults of a message; after the first one, those that follow are not to be relied on."""
    yield from _name_faults("tensor", message.tensors, form)
    yield from _name_faults("fact", message.facts, form)
    for name, tensor in message.tensors.items():
        yield from _tensor_faults(name, tensor, form.tensors.get(name), largest)
    for name, value in message.facts.items():
        yield from _fact_faults(name, value, form.facts[name])
    for name, index in message.samples.items():
        yield from _samples_faults(name, index, form)
    if form.rule is not None:
        wrong = form.rule(message)
        if wrong is not None:
            yield wrong


def bounded(message: Message, form: MessageForm) -> Message:
    """Return a message whose floating-point values are within the bounds that its form declares."""
    tensors = dict(message.tensors)
    for name, declared in form.tensors.items():
        if name in tensors and tensors[name].is_floating_point() and (declared.minimum, declared.maximum) != UNBOUNDED:
            tensors[name] = tensors[name].clamp(declared.minimum, declared.maximum)
    return replace(message, tensors=tensors)


def change_norm(message: Message, form: MessageForm) -> float:
    """Return how much a message without fault changes the model: the norm of its measured tensors' distance from start.

    The norm is over all of them together, in their own precision, which is enough to compare clients by; 0 where no
    tensor is measured.
    """
    squares = 0.0
    for name, tensor in message.tensors.items():
        declared = form.tensors.get(name)
        if declared is None or not declared.measured or not tensor.is_floating_point():
            continue
        if declared.difference or declared.start is None:
            squares += float(torch.linalg.vector_norm(tensor)) ** 2
            continue
        start = declared.start.to(tensor.device)
        if start.dim() > tensor.dim():  # a stack of models to start from
            squares += min(float(torch.linalg.vector_norm(tensor - model)) for model in start) ** 2
        else:
            squares += float(torch.linalg.vector_norm(tensor - start)) ** 2
    return math.sqrt(squares)


def start_norm(names: Iterable[str], form: MessageForm) -> float:
    """Return the norm of the starts of the measured tensors with these names; of a stack of models, of the longest."""
    squares = 0.0
    for declared in (form.tensors[name] for name in names if name in form.tensors):
        if declared.measured and declared.start is not None:
            start = declared.start.double()
            rows = start.flatten(1) if start.dim() > len(declared.shape) else start.reshape(1, -1)
            squares += float(rows.square().sum(1).max())
    return math.sqrt(squares)


def _name_faults(what: str, values: Mapping[Any, Any], form: MessageForm) -> Iterator[str]:
    """Yield the faults of a message's names, then missing and undeclared ones."""
    yield from _bad_names(what, values)
    declared: Mapping[str, Any] = {"tensor": form.tensors, "fact": form.facts}[what]
    for name in declared:
        if name not in values and name not in form.optional:
            yield f"{what} {name!r} is missing"
    for name in values:
        if name not in declared and not (form.others and what == "tensor"):
            expected = ", ".join(map(repr, list(declared)[:4])) or "none"
            yield f"it holds a {what} {str(name)[:80]!r} that its method does not declare, expected {expected}"


def _bad_names(what: str, values: Mapping[Any, Any]) -> Iterator[str]:
    """Yield the faults of names that no message may have, or of too many."""
    if len(values) > MAX_NAMES:
        yield f"it holds {len(values):,} {what}s, expected at most {MAX_NAMES:,}"
    for name in values:
        if not isinstance(name, str):
            yield f"{what} {short(name)} has no name"
        elif len(name) > MAX_CHARACTERS:
            yield f"the name of a {what} has {len(name):,} characters, expected at most {MAX_CHARACTERS:,}"


def _tensor_faults(name: str, tensor: Any, form: TensorForm | None, largest: float) -> Iterator[str]:
    if not isinstance(tensor, Tensor):
        yield f"{name!r} is a {type(tensor).__name__}, expected a tensor"
        return
    if tensor.layout != torch.strided or tensor.is_complex() or tensor.is_quantized:
        dtype = f"{_word(tensor.dtype)} ({tensor.layout})"
        yield f"tensor {name!r} has dtype {dtype}, expected real numbers, stored densely"
    if form is not None and tensor.dtype != form.dtype:
        yield f"tensor {name!r} has dtype {_word(tensor.dtype)}, expected {_word(form.dtype)}"
    if form is not None and not _shape_fits(tensor.shape, form.shape):
        yield f"tensor {name!r} has shape {tuple(tensor.shape)}, expected {_shape(form.shape)}"
    if tensor.numel():
        yield from _value_faults(name, tensor, form or UNBOUNDED_FORM, largest)


def _value_faults(name: str, tensor: Tensor, form: TensorForm, largest: float) -> Iterator[str]:
    # NaN becomes both the minimum and the maximum, so that one pass finds everything.
    low, high = (float(end) for end in torch.aminmax(tensor))
    if not (math.isfinite(low) and math.isfinite(high)):
        yield f"tensor {name!r} holds NaN or infinite values; lower local.lr or check the client's data"
    minimum = form.minimum
    maximum = form.maximum
    if tensor.is_floating_point():
        minimum = -largest if minimum == -math.inf else minimum
        maximum = largest if maximum == math.inf else maximum
    if low < minimum or high > maximum:
        wrong = low if low < minimum else high
        yield f"tensor {name!r} holds {wrong:g}, expected values from {minimum:g} to {maximum:g}"


def _shape_fits(shape: torch.Size, expected: tuple[int | range, ...]) -> bool:
    if shape == expected:
        return True
    if len(shape) != len(expected):
        return False
    pairs = zip(shape, expected, strict=True)
    return all(size in wanted if isinstance(wanted, range) else size == wanted for size, wanted in pairs)


def _fact_faults(name: str, value: Any, form: FactForm) -> Iterator[str]:
    if form.length is None:
        yield from _number_faults(name, value, form)
    elif not isinstance(value, list | tuple) or len(value) != form.length:
        yield f"fact {name!r} is {short(value)}, expected a list of {form.length} numbers"
    else:
        for number in value:
            yield from _number_faults(name, number, form)


def _number_faults(name: str, value: Any, form: FactForm) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int if form.whole else int | float):
        yield f"fact {name!r} is {short(value)}, expected {'a whole number' if form.whole else 'a number'}"
    elif isinstance(value, float) and not math.isfinite(value):
        if form.finite:
            yield f"fact {name!r} is {value}, expected a finite number"
    elif not form.minimum <= value <= form.maximum:
        exact = form.minimum == form.maximum
        wanted = f"{form.minimum:g}" if exact else f"{form.minimum:g} to {form.maximum:g}"
        yield f"fact {name!r} is {short(value)}, expected {wanted}"
    elif isinstance(value, int) and not fits(value):
        yield f"fact {name!r} is {short(value)}, expected a whole number from {MIN_INT64} to {MAX_INT64}"


def _samples_faults(name: str, index: Any, form: MessageForm) -> Iterator[str]:
    if name not in form.samples:
        yield f"it holds samples {str(name)[:80]!r} that its method does not declare"
    elif not isinstance(index, Tensor) or index.dtype != torch.int64 or index.dim() != 1:
        yield f"samples {name!r} are not a list of indices (int64)"
    elif len(index) > form.samples[name]:
        yield f"samples {name!r} are {len(index)}, expected at most {form.samples[name]}"
    elif len(index) and not (int(index.min()) >= 0 and int(index.max()) < form.indices):
        yield f"samples {name!r} name samples outside of the set, which has {form.indices}"


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(shape: tuple[int | range, ...]) -> str:
    words = [f"{size.start} to {size.stop - 1}" if isinstance(size, range) else str(size) for size in shape]
    return f"({', '.join(words)}{',' if len(words) == 1 else ''})"


def fits(value: int) -> bool:
    """Return whether 64 bits hold a whole number."""
    return MIN_INT64 <= value <= MAX_INT64


def short(value: Any) -> str:
    """Return a value as text of at most 40 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no whole number of more than 4,300 digits
        return "too long to print"
    return text if len(text) <= 40 else text[:37] + "..."
