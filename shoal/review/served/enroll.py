"""Enrolment of a new client in a finished CFL run: it finds its cluster (Sattler et al. 2021, algorithm 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.core.streams import Streams
from shoal.data.partition.make import make_partition
from shoal.data.partition.schemes import IID
from shoal.data.partition.table import load_partition
from shoal.data.sets.prepare import prepare
from shoal.data.sets.prepared import read_manifest
from shoal.data.views.view import DeviceData, client_samples
from shoal.engine.store.codec import save_tensors
from shoal.engine.store.kept_state import read_state
from shoal.engine.store.run_facts import RunFacts
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.methods.cfl.cfl import CFL
from shoal.methods.cfl.state import CFLState
from shoal.methods.cfl.supervised import judge
from shoal.methods.cfl.tree import branch_similarities, nearest_child
from shoal.methods.contract.base import Client


def open_cfl(run: RunFolder) -> tuple[RunFacts, CFL]:
    """Return the facts of a run of method cfl, and its method.

    Raises:
        RunError: the run has another method.
    """
    facts = RunFacts(run)
    method = facts.method
    if not isinstance(method, CFL):
        raise RunError(
            f"run {run.name} is of method {method.name!r}, and only runs of cfl have a tree to enroll in: give a run "
            "of method cfl"
        )
    return facts, method


VALIDATION = 0.2
"""The share of a data set's samples that is held out, to judge the model of each node."""


def new_client(run: RunFolder, source: str, store: Path, mirror: Path | None) -> Client:
    """Return a new client with its samples.

    Args:
        run: the run that the client joins.
        source: a data set (built-in or the user's own), or `PARTITION_FOLDER:K` for client K of a stored partition.
        store: folder of prepared sets.
        mirror: folder of raw files of built-in sets.

    Raises:
        RunError: the run has another method than cfl, or the samples another kind, shape or labels than the run's, or
            the partition is of another version of its set.
        DataError: no such set or partition.
    """
    facts, _ = open_cfl(run)
    folder, colon, number = source.rpartition(":")
    if colon and number.isdigit() and Path(folder).is_dir():
        partition = load_partition(Path(folder))
        client = int(number)
        prepared = prepare(partition.data, store, mirror=mirror)
        if client >= partition.clients:
            raise RunError(f"partition {folder} has no client {client}: its clients are 0 to {partition.clients - 1}")
    else:
        prepared = prepare(source, store, mirror=mirror)
        client = 0
        partition = make_partition(IID(clients=1, validation=VALIDATION), prepared, seed=facts.settings.seed)
    expected = facts.spec
    spec = prepared.spec
    if (expected.kind, expected.shape, expected.vocabulary) != (spec.kind, spec.shape, spec.vocabulary):
        raise RunError(
            f"the new client has {spec.kind} data of shape {spec.shape}, and the run's model takes {expected.kind} "
            f"data of shape {expected.shape}: choose data of that kind and shape"
        )
    given = prepared.manifest.class_names
    taken = read_manifest(run.folder_of("data")).class_names
    if given != taken:
        raise RunError(f"the new client has labels {given}, and the run's model tells {taken}: give it these labels")
    if partition.data_digest != prepared.manifest.digest:
        raise RunError(f"{folder} deals another version of its set: make it again with `shoal data partition`")
    data = DeviceData(prepared)
    # A number that no client of the run has, so that no random draw is shared.
    return Client(
        facts.partition.clients,
        client_samples(data, partition, client),
        client_samples(data, partition, client, validation=True),
        {},
        (),
        Streams(facts.settings.seed, run.status().round + 1, facts.partition.clients),
    )


@dataclass(frozen=True)
class Step:
    """A node of the tree on the way of a new client.

    Args:
        node: its number.
        similarities: how near the client's update is to each branch, by the number of the branch's node; empty at a
            leaf.
        accuracy: of the node's model on the client's validation samples; None where it has none.
    """

    node: int
    similarities: Mapping[int, float]
    accuracy: float | None


@dataclass(frozen=True)
class Enrolment:
    """The place of a new client in the tree.

    Args:
        path: the nodes from the root to its cluster.
        cluster: number of the last node.
        clients: who is in that cluster.
        model: the file of the cluster's model: named tensors of the network.
    """

    path: tuple[Step, ...]
    cluster: int
    clients: tuple[int, ...]
    model: str


def enroll(run: RunFolder, client: Client, out: Path | None = None) -> Enrolment:
    """Walk a new client down the tree by the update of its training, and write the model of its leaf.

    Args:
        run: a run of method cfl with at least one finished round.
        client: its samples and streams.
        out: the model's file; by default in the run's folder.

    Raises:
        RunError: the run has another method, or no round yet.
        StoreError: the state is damaged.
    """
    _, method = open_cfl(run)
    server = read_state(run).server
    if not server.round:
        raise RunError(f"run {run.name} has no finished round yet: `shoal run --resume {run.name}` trains it")
    state = CFLState.from_server(server)
    tree = state.tree
    path = []
    node = 0
    while True:
        weights = server.model[f"node/{node}"]
        network = method.loaded(weights)
        accuracy = None
        if len(client.validation):
            accuracy = judge(network, client.validation, method.context).accuracy
        if not tree.nodes[node].children:
            path.append(Step(node, {}, accuracy))
            break
        update = method.learn(weights, client)
        similarities = branch_similarities(tree, server.state, node, update, state.size)
        path.append(Step(node, similarities, accuracy))
        node = nearest_child(similarities)
    cluster = path[-1].node
    file = out or run.path / f"enrolled-node-{cluster}.safetensors"
    about = {"run": run.name, "node": cluster, "settings": run.settings().to_json()}
    save_tensors(file, {name: tensor.contiguous() for name, tensor in network.state_dict().items()}, about)
    return Enrolment(tuple(path), cluster, tuple(tree.nodes[cluster].clients), str(file))
