"""The state that a run starts from: the method's own, or that of an earlier run, on data that have grown since.

    origin.safetensors     the earlier run's newest server state, kept in the folder of the run that starts from it
    lineage.json, origin   which run that was, after which round, and the digests of its state and of the file

The run takes over tensors: those that the method's own initial state has, by name. Facts, such as the number of
clients, follow from the new federation, clients begin without memory, and rounds are counted from 0 again. The same
settings, data and origin give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shoal.core.errors import ShoalError
from shoal.engine.store.codec import file_digest, load_tensors, save_server
from shoal.engine.store.kept_state import read_state_if_any
from shoal.engine.store.lineage import StartingState
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.contract.base import Method, Server
from shoal.methods.contract.message import Tensors

ORIGIN = "origin.safetensors"


class WarmStartError(ShoalError):
    """A run cannot start from another run's state."""


@dataclass(frozen=True)
class WarmStart:
    """The state of another run that a run starts from.

    Args:
        run: the name of its folder.
        server: its newest state.
        sha256: digest of that state, as in the manifest of its round.
    """

    run: str
    server: Server
    sha256: str

    @classmethod
    def from_run(cls, run: RunFolder) -> WarmStart:
        """Read the newest state of a run.

        Raises:
            WarmStartError: it has no round yet. StoreError: its last state is damaged.
        """
        found = read_state_if_any(run)
        if found is None:
            raise WarmStartError(f"run {run.name} has no state to start from: start a new run without it")
        return cls(run.name, found.server, found.manifest.server_sha256)

    def keep(self, run: RunFolder) -> None:
        """Write the state to the folder of the run that is to start from it, and name it in the lineage."""
        path = run.path / ORIGIN
        save_server(path, self.server)
        run.set_lineage(origin=StartingState(self.run, self.server.round, self.sha256, file_digest(path)))


def origin_sha256(run: RunFolder) -> str | None:
    """Return the digest of the state that a run starts from; None where it starts from the method's own."""
    origin = run.lineage().origin
    if origin is None:
        return None
    return origin.server_sha256


def why_not_resumable(method: type[Method]) -> str | None:
    """Return why runs of a method cannot start from an earlier run's state; None where they can.

    They can where the state is one model that every round trains further. Centres follow from the data at hand, a tree
    or an assignment belongs to its own clients, and local models are not at the server at all.
    """
    if method.averages:
        return None
    return f"the server state of {method.name} is not one model that rounds train further"


def initial_state(opened: OpenedRun) -> Server:
    """Return the state before round 1.

    Raises:
        WarmStartError: the state of the origin does not fit the method, its settings or the data.
        StoreError: the file of the origin is missing or changed.
    """
    fresh = opened.method.init_server(opened.federation)
    origin = opened.lineage.origin
    if origin is None:
        return fresh
    tensors, _ = load_tensors(opened.run.path / ORIGIN, sha256=origin.file_sha256)
    return started_from(fresh, tensors, type(opened.method), origin.run)


def started_from(fresh: Server, tensors: Tensors, method: type[Method], name: str) -> Server:
    """Return a fresh state with another state's tensors in place of its own.

    Args:
        fresh: the method's initial state.
        tensors: of the other state, by name.
        method: of both.
        name: of the run that the other state is of, for errors.

    Raises:
        WarmStartError: runs of the method cannot start so, or a tensor is missing or of another shape.
    """
    if reason := why_not_resumable(method):
        raise WarmStartError(f"a run cannot start from run {name}: {reason}: start a new run without it")
    taken = {}
    for key, own in fresh.model.items():
        other = tensors.get(key)
        if other is None or other.shape != own.shape or other.dtype != own.dtype:
            shape = "missing" if other is None else f"{other.dtype} {tuple(other.shape)}"
            raise WarmStartError(
                f"a run cannot start from run {name}: tensor {key!r} of its state is {shape}, expected {own.dtype} "
                f"{tuple(own.shape)}: start a new run without it, or use the model settings of that run"
            )
        taken[key] = other.to(own.device)
    return replace(fresh, model=taken)
