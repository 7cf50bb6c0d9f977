"""The pretend device itself, on torch's backend for devices that are written in Python.

It is there inside `pretending()` alone.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _DummyPrivateUse1Hook,
    _setup_privateuseone_for_python_backend,
)

from tests.pretend_gpu import precision
from tests.pretend_gpu.ledger import Ledger, asking_line
from tests.pretend_gpu.rules import aten, forbidden, launches, waits
from tests.pretend_gpu.stand_ins import STAND_INS

NAME = "pretend"
DEVICE = f"{NAME}:0"
CONTAINERS = (list, tuple)
_context = threading.local()
_lock = threading.Lock()


class MixedDevices(RuntimeError):
    """An operation was given tensors, or a generator and a tensor, of two devices."""


class PretendTensor(Tensor):
    """A tensor of the device; `cpu_values`, a tensor of the CPU, has its values."""

    cpu_values: Tensor
    place: ClassVar[torch.device]

    @staticmethod
    def __new__(cls, cpu_values: Tensor) -> PretendTensor:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            cpu_values.size(),
            strides=cpu_values.stride(),
            storage_offset=cpu_values.storage_offset(),
            dtype=cpu_values.dtype,
            layout=cpu_values.layout,
            device=cls.place,
        )
        made.cpu_values = cpu_values
        return made

    def __init__(self, cpu_values: Tensor) -> None:
        pass

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, *_: Any, **__: Any) -> str:
        return f"PretendTensor({self.cpu_values!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return execute(func, args, kwargs or {})


class PretendGenerator(torch.Generator):
    """A generator that knows for which device it was made; it draws on the CPU in either case."""

    made: ClassVar[dict[int, torch.device]] = {}
    """The device of each that lives, by the address of what draws: torch hands operations another object for it."""

    def __new__(cls, device: torch.device | str = "cpu") -> PretendGenerator:
        generator = super().__new__(cls, device="cpu")
        cls.made[generator._cdata] = torch.device(device)  # type: ignore[attr-defined]
        return generator

    def __init__(self, device: torch.device | str = "cpu") -> None:
        pass

    def __del__(self) -> None:
        self.made.pop(self._cdata, None)  # type: ignore[attr-defined]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.made[self._cdata]  # type: ignore[attr-defined]


class _Here(TorchDispatchMode):
    """Sees operations that no tensor of the device goes into, but one may come out of."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return execute(func, args, kwargs or {})


def ours(value: Any) -> bool:
    """Whether a value is a tensor of the device."""
    return type(value) is PretendTensor


def execute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation of torch, by the rules of a GPU.

    Raises:
        MixedDevices: a GPU would refuse it.
    """
    leaves = [*_leaves(args), *_leaves(kwargs.values())]
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    taken = any(map(ours, tensors))
    wanted = kwargs.get("device")
    given = taken if wanted is None else torch.device(wanted).type == NAME
    if not taken and not given:
        _check_generator(func, leaves, "cpu")
        return func(*args, **kwargs)
    if why := forbidden(func, args, tensors, ours):
        shapes = ", ".join(f"{each.device.type}{tuple(each.shape)}" for each in tensors)
        raise MixedDevices(f"{func} at {asking_line()}: {why} ({shapes})")
    _check_generator(func, leaves, NAME if given else "cpu")
    ledger: Ledger = getattr(_context, "ledger", None) or Ledger()
    ledger.operations += 1
    if launches(func):
        ledger.launch()
    for kind in waits(func, args, kwargs, ours):
        ledger.wait(kind)
    moved = func is aten._to_copy.default and taken != given
    if moved:
        ledger.wait("a copy to the device" if given else "a copy to the host")
    found = _on_the_cpu(func, args, kwargs)
    ledger.precisions.update({leaf.dtype for leaf in _leaves((found,)) if isinstance(leaf, Tensor)})
    if not given or func in (aten._local_scalar_dense.default, aten.equal.default):
        return found
    wrapped = _mapped(_wrapped, found)
    if func is aten._pack_padded_sequence.default:
        return wrapped[0], found[1]  # lengths stay on the host
    # What an operation changes in place it gives back itself, with its new shape where that changed.
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if func._schema.is_mutable else wrapped


def _check_generator(func: Any, leaves: list[Any], device: str) -> None:
    for leaf in leaves:
        if isinstance(leaf, torch._C.Generator):
            own = PretendGenerator.made.get(leaf._cdata, leaf.device).type  # type: ignore[attr-defined]
            if own != device:
                raise MixedDevices(f"{func} at {asking_line()}: a generator of {own} draws on {device}")


def _on_the_cpu(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    args = tuple(_mapped(_unwrapped, each) for each in args)
    kwargs = {name: _mapped(_unwrapped, each) for name, each in kwargs.items()}
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    if "pin_memory" in kwargs:
        kwargs["pin_memory"] = False
    return STAND_INS.get(func, func)(*args, **kwargs)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if type(value) in CONTAINERS:
            yield from _leaves(value)
        else:
            yield value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    return type(value)([_mapped(change, each) for each in value]) if type(value) in CONTAINERS else change(value)


def _unwrapped(value: Any) -> Any:
    return value.cpu_values if type(value) is PretendTensor else value


def _wrapped(value: Any) -> Any:
    return PretendTensor(value) if type(value) is Tensor else value


class _Module(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def is_available(self) -> bool:
        return _Hook.users > 0

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return int(_Hook.users > 0)  # torch asks for the random state of all there are

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()  # its draws are the CPU's

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


class _Hook(_DummyPrivateUse1Hook):
    users = 0
    """Contexts that are open in this process."""
    batch_norm: Any
    before: tuple[Any, bool]
    """What stood in torch before the first of them."""

    def is_available(self) -> bool:
        return _Hook.users > 0


def _batch_norm(x: Tensor, *args: Any) -> Tensor:
    """torch's own, which asks CUDA's images how they lie; under `vmap` nobody can say."""
    if x.device.type == NAME and x.dim() == 4 and torch._C._functorch.is_batchedtensor(x):
        raise RuntimeError("NYI: querying is_contiguous inside of vmap for memory_format other than contiguous_format")
    return _Hook.batch_norm(x, *args)


@functools.cache
def _registered() -> tuple[Any, ...]:
    """Make the device known to torch, once in a process; what must live as long as the process."""
    hook, module = _Hook(), _Module()
    _setup_privateuseone_for_python_backend(rename=NAME, backend_module=module, hook=hook)
    PretendTensor.place = torch.device(DEVICE)
    autocast = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    autocast.fallback(torch.library.fallthrough_kernel)
    return hook, module, autocast, precision.register(NAME)


@contextlib.contextmanager
def _known_to_torch() -> Iterator[None]:
    """What is one for all threads, from the first who enters to the last who leaves."""
    with _lock:
        if not _Hook.users:
            _Hook.before = torch.Generator, torch.__future__.get_overwrite_module_params_on_conversion()
            _Hook.batch_norm = torch.batch_norm
            torch.Generator = PretendGenerator  # type: ignore[misc]
            torch.batch_norm = _batch_norm
            # A parameter of the CPU cannot become one of the device in place.
            torch.__future__.set_overwrite_module_params_on_conversion(True)
        _Hook.users += 1
    try:
        yield
    finally:
        with _lock:
            _Hook.users -= 1
            if not _Hook.users:
                torch.Generator, overwrite = _Hook.before  # type: ignore[misc]
                torch.batch_norm = _Hook.batch_norm
                torch.__future__.set_overwrite_module_params_on_conversion(overwrite)


@contextlib.contextmanager
def pretending() -> Iterator[Ledger]:
    """The device is there until the end, for this thread; other threads enter contexts of their own.

    Returns:
        What this thread asks of it, counted from here.
    """
    with _lock:
        _registered()
    lifted, outer = torch._C._only_lift_cpu_tensors(), getattr(_context, "ledger", None)
    _context.ledger = Ledger()
    # `torch.tensor` makes its values on the CPU first, and backward passes stay on this thread, where the mode is.
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        with _known_to_torch(), torch.autograd.set_multithreading_enabled(False), _Here():
            yield _context.ledger
    finally:
        _context.ledger = outer
        torch._C._set_only_lift_cpu_tensors(lifted)
