"""The state from which a run starts: the method's initial state, or the model of an earlier run.

    origin.safetensors     a copy of the earlier run's newest server state, in the folder of the new run
    lineage.json, origin   name and round of the earlier run, and the digest of its state

The run takes over the tensors of the model: of a network that is averaged, or a space and centres. Facts, such as the
number of clients, follow from the new federation, clients begin without memory, and rounds are counted from 0. The same
settings, data and origin give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shoal.core.errors import ShoalError
from shoal.engine.store.codec import changed_error, load_server, save_server, server_digest
from shoal.engine.store.kept_state import read_state_if_any
from shoal.engine.store.lineage import StartingState
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.contract.base import Method, Server
from shoal.methods.contract.message import Tensors

ORIGIN = "origin.safetensors"


class WarmStartError(ShoalError):
    """A run cannot start from another run's state."""


@dataclass(frozen=True)
class WarmStart:
    """The state of another run, from which a run starts.

    Args:
        run: name of the other run.
        server: its newest state.
        sha256: digest of that state, as in the status of a finished run.
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
            raise WarmStartError(f"run {run.name} has no finished round to start from: start a new run without it")
        return cls(run.name, found.server, server_digest(found.server))

    def keep(self, run: RunFolder) -> None:
        """Write the state to the folder of the run that starts from it, and add it to its lineage."""
        save_server(run.path / ORIGIN, self.server)
        run.set_lineage(origin=StartingState(self.run, self.server.round, self.sha256))


def origin_sha256(run: RunFolder) -> str | None:
    """Return the digest of the state from which a run starts; None if it starts from the method's initial state."""
    origin = run.lineage().origin
    if origin is None:
        return None
    return origin.server_sha256


def initial_state(facts: RunFacts) -> Server:
    """Return the state before round 1.

    Raises:
        WarmStartError: the earlier state does not fit the method, its settings or the data.
        StoreError: the file of the earlier state is missing or changed.
    """
    fresh = facts.method.init_server(facts.federation)
    origin = facts.lineage.origin
    if origin is None:
        return fresh
    path = facts.run.path / ORIGIN
    server = load_server(path)
    if server_digest(server) != origin.server_sha256:
        raise changed_error(path)
    return take_over_model(fresh, server.tensors, facts.method, origin.run)


def take_over_model(fresh: Server, tensors: Tensors, method: Method, name: str) -> Server:
    """Return a method's initial state with the model of another run.

    Args:
        fresh: the initial state.
        tensors: tensors of the other run's state, by name.
        method: the method of both runs.
        name: name of the other run, for errors.

    Raises:
        WarmStartError: runs of the method cannot start so, or a tensor is missing or has another shape.
    """
    if not method.averages:
        model = method.continued(tensors)
        if model is None:
            raise WarmStartError(
                f"a run cannot start from run {name}: its state is not one from which {method.name} goes on with these "
                "settings: start a new run without it"
            )
        return replace(fresh, model={key: tensor.to(method.context.device) for key, tensor in model.items()})
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
