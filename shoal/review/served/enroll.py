"""A new client finds its cluster in a finished CFL run (Sattler et al. 2021, algorithm 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.core.streams import Streams
from shoal.data.partition.make import make_partition
from shoal.data.partition.schemes import IID
from shoal.data.partition.table import load_partition
from shoal.data.prepared import Prepared
from shoal.data.view import DeviceData, client_samples
from shoal.engine.store.codec import save_tensors
from shoal.engine.store.kept_state import read_state
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.represent import prepare_set
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.methods.cfl.cfl import CFL
from shoal.methods.cfl.state import CFLState
from shoal.methods.cfl.supervised import judge
from shoal.methods.cfl.tree import branch_similarities, nearest_child
from shoal.methods.contract.base import Client


def new_client(
    run: RunFolder, source: str, store: Path, mirror: Path | None, *, validation: float = 0.2, limit: int | None = None
) -> Client:
    """The new client's samples.

    Args:
        run: the run it is to be enrolled in.
        source: a data set (built-in or the user's own), or `PARTITION_FOLDER:K` for client K of a stored partition.
        store: where prepared sets are.
        mirror: raw files of built-in sets.
        validation: share of a data set's samples held out.
        limit: samples of a data set to use.

    Raises:
        RunError: the samples have another kind or shape than the run's.
        DataError: no such set or partition.
    """
    opened = OpenedRun(run)
    folder, colon, number = source.rpartition(":")
    if colon and number.isdigit() and Path(folder).is_dir():
        partition, client = load_partition(Path(folder)), int(number)
        prepared = prepare_set(partition.data, store, mirror=mirror)
        if client >= partition.clients:
            raise RunError(f"partition {folder} has clients 0 to {partition.clients - 1}, not {client}")
    else:
        prepared, client = prepare_set(source, store, mirror=mirror), 0
        partition = make_partition(
            IID(clients=1, validation=validation), prepared, limit=limit, seed=opened.settings.seed
        )
    check_alike(prepared, opened)
    data = DeviceData(prepared)
    # A number that no client of the run has, so that no random draw is shared.
    return Client(
        opened.partition.clients,
        client_samples(data, partition, client),
        client_samples(data, partition, client, validation=True),
        {},
        (),
        Streams(opened.settings.seed, run.status().round + 1, opened.partition.clients),
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
        given: the node whose model it gets.
        model: the file of that model: named tensors of the network.
        round: the round whose tree was used.
    """

    path: tuple[Step, ...]
    cluster: int
    clients: tuple[int, ...]
    given: int
    model: str
    round: int


def check_alike(prepared: Prepared, opened: OpenedRun) -> None:
    """Refuse data that the run's model cannot read.

    Raises:
        RunError: says what was expected.
    """
    wanted, given = opened.prepared.spec, prepared.spec
    if (wanted.kind, wanted.shape, wanted.vocabulary) != (given.kind, given.shape, given.vocabulary):
        raise RunError(
            f"the new client has {given.kind} data of shape {given.shape}, the run's model takes {wanted.kind} data of "
            f"shape {wanted.shape}"
        )


def enroll(
    run: RunFolder, client: Client, give: str = "leaf", out: Path | None = None, round: int | None = None
) -> Enrolment:
    """Walk a new client down the tree by what its training would change, and write the model it gets.

    Args:
        run: a run of method cfl with at least one finished round.
        client: its samples and streams.
        give: `leaf`, `root`, `best` on the client's validation samples, or the number of a node on its path.
        out: the model's file; by default in the run's folder.
        round: the round whose tree is used; None: the last.

    Raises:
        RunError: the run is of another method, has no round yet or no such round, or `give` names no node of the path.
        StoreError: the state is damaged.
    """
    opened = OpenedRun(run)
    method = opened.method
    if not isinstance(method, CFL):
        raise RunError(f"run {run.name} is of method {method.name!r}; only runs of cfl have a tree to enroll in")
    server = read_state(run, round).server
    if not server.round:
        raise RunError(f"run {run.name} has no finished round yet")
    state = CFLState.from_server(server)
    tree = state.tree
    vectors, network = method.vectors(), method.network()
    path: list[Step] = []
    node = 0
    while True:
        weights = server.model[f"node/{node}"]
        accuracy = None
        if len(client.validation):
            accuracy = judge(vectors.load(network, weights), client.validation, method.context).accuracy
        if not tree.nodes[node].children:
            path.append(Step(node, {}, accuracy))
            break
        update = method.learn(weights, client)
        similarities = branch_similarities(tree, server.state, node, update, state.size)
        path.append(Step(node, similarities, accuracy))
        node = nearest_child(similarities)
    cluster = path[-1].node
    given = choose(path, give)
    vectors.load(network, server.model[f"node/{given}"])
    file = out or run.path / f"enrolled-node-{given}.safetensors"
    about = {"run": run.name, "node": given, "settings": run.settings().to_json()}
    save_tensors(file, {name: tensor.contiguous() for name, tensor in network.state_dict().items()}, about)
    return Enrolment(tuple(path), cluster, tuple(tree.nodes[cluster].clients), given, str(file), server.round)


def choose(path: Sequence[Step], give: str) -> int:
    """The node whose model is given.

    Raises:
        RunError: it is not on the path, or there is nothing to choose the best by.
    """
    nodes = [step.node for step in path]
    if give in ("leaf", "root"):
        return nodes[-1] if give == "leaf" else nodes[0]
    if give == "best":
        if path[0].accuracy is None:
            raise RunError("--give best needs validation samples of the new client: raise --validation")
        # The most special of equally good ones.
        return max(path, key=lambda step: (step.accuracy or 0.0, nodes.index(step.node))).node
    if not give.isdigit() or int(give) not in nodes:
        raise RunError(f"--give {give}: expected leaf, root, best, or a node of the path {nodes}")
    return int(give)
