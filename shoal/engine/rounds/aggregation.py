"""Aggregation: from the finished work of a round's clients to the next server state, in an open checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from shoal.engine.messages.inspection import RoundInspection, check_state
from shoal.engine.messages.prefetcher import REUSE_MEMORY_BYTES
from shoal.engine.messages.wire import Failed
from shoal.engine.rounds.active_run import ActiveRun
from shoal.engine.settings.hardware import keep_freed_memory
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.store.checkpoint import adopt, open_round, sync_files
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.memory_index import MemoryIndex
from shoal.engine.store.round_paths import RoundPaths, inbox_path, memory_path
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.methods.contract.base import Update
from shoal.methods.contract.message import Message, Tensors


def aggregate(active_run: ActiveRun, round: int, clients: Sequence[int], min_clients: int = 1) -> dict[int, Failed]:
    """Aggregate the accepted updates, in order of client id, read one at a time.

    Which changes are too large is known only after the last update; then aggregate again without them.

    Args:
        active_run: the run; it keeps the state after `round`.
        round: the round.
        clients: ids of the clients that are done.
        min_clients: with fewer accepted updates there is no next state.

    Returns:
        The failures of the clients whose answers were rejected.

    Raises:
        RunError: the method's state has another round or is not finite, or the work of a client is missing.
    """
    before, memory_index = active_run.state(round - 1)
    done = [active_run.done(round, client) for client in sorted(clients)]
    method = active_run.opened.method
    inspection = RoundInspection(active_run.run, active_run.opened, before, done, active_run.prefetcher)
    if inspection.size > REUSE_MEMORY_BYTES:
        keep_freed_memory()
    with one_thread():
        settled = False
        while not settled:
            following = None
            failure = None
            try:
                following = method.aggregate(before, rebase_stale(active_run, round, inspection.updates()))
            except Exception as error:  # perhaps because of an answer that is refused below
                failure = error
            settled = inspection.settle()
            if len(inspection.done) < min_clients:
                return inspection.refused
            if settled and failure is not None:
                raise failure
        assert following is not None
        check_state(method, before, following)
    active_run.prefetcher.clear()
    if following.round != round:
        raise RunError(f"method {method.name!r} aggregated round {round} into {following.round}")
    after = memory_index_after(active_run.run, round, memory_index, inspection.done)
    open_round(active_run.run, following, after)
    active_run.keep_state(following, after)
    return inspection.refused


def rebase_stale(active_run: ActiveRun, round: int, updates: Iterable[Update]) -> Iterator[Update]:
    """Yield updates as if all had begun from the newest state: the change of each, weighed by its age, is added to it.

    If rounds wait for all their clients, updates stay unchanged. The mean of the result is the newest state plus the
    mean of (1 + t)^-a times the change of each answer, which began t rounds earlier.

    Source: Nguyen et al. 2022, algorithm 1; the weight is that of Xie, Koyejo and Gupta 2019, "Asynchronous Federated
    Optimization", with a = 1/2 in FedBuff.
    """
    if active_run.answer_schedule is None:
        yield from updates
        return
    method = active_run.opened.method
    newest_state = active_run.state(round - 1)[0]
    for update in updates:
        begun_from = active_run.begun_from(round, update.client)
        age = round - 1 - begun_from
        if not age:
            yield update
            continue
        sent = method.broadcast(active_run.older_state(begun_from), update.client).tensors
        newest = method.broadcast(newest_state, update.client).tensors
        weight = (1.0 + age) ** -active_run.opened.settings.participation.staleness
        yield replace(update, message=rebase(update.message, sent, newest, weight))


def rebase(message: Message, sent: Tensors, newest: Tensors, weight: float) -> Message:
    """Return a message whose tensors are the newest ones plus `weight` times the change of those that were sent.

    Whole numbers (BatchNorm's counts of batches) and tensors that were not sent stay unchanged.
    """
    tensors = {}
    for name, tensor in message.tensors.items():
        tensors[name] = tensor
        if name in sent and tensor.is_floating_point():
            changed = newest[name].double() + weight * (tensor.double() - sent[name].double())
            if name.endswith("running_var"):
                changed = changed.clamp_min(0)
            tensors[name] = changed.to(tensor.dtype)
    return replace(message, tensors=tensors)


def memory_index_after(run: RunFolder, round: int, before: MemoryIndex, done: Sequence[FinishedWork]) -> MemoryIndex:
    """Return the memory and inbox versions after a round, and give the files their final names.

    Args:
        run: the run's folder.
        round: the round.
        before: the index after the round before.
        done: the clients' work, in order of their ids.
    """
    paths = RoundPaths(run.path, round)
    memory: dict[int, str] = {}
    sent: dict[tuple[int, int], str] = {}
    adopted: list[Path] = []

    def keep(name: str, target: str) -> None:
        adopt(run, paths.work / name, target)
        adopted.append(run.path / target)

    for work in done:
        if work.memory is not None:
            keep(work.memory, memory_path(work.client, round))
            memory[work.client] = work.sha256[work.memory]
        for peer in sorted(work.peers):
            name = work.peer(peer)
            keep(name, inbox_path(peer, work.client, round))
            sent[peer, work.client] = work.sha256[name]
    sync_files(adopted)
    sync_files(sorted({path.parent for path in adopted}))
    return before.after(round, [work.client for work in done], memory, sent)
