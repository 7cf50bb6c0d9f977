"""From the finished work of a round's clients to the next server state, in a checkpoint that is not closed yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from shoal.engine.messages.inspection import RoundInspection, check_state
from shoal.engine.messages.prefetcher import LARGE
from shoal.engine.messages.summing import SumsInspection
from shoal.engine.messages.wire import Failed
from shoal.engine.rounds.active_run import ActiveRun
from shoal.engine.settings.hardware import keep_freed_memory
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.store.checkpoint import adopt, open_round, sync_files
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.memory_index import IndexChange, MemoryIndex
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.methods.contract.base import Update
from shoal.methods.contract.message import Message, Tensors


def aggregate(active_run: ActiveRun, round: int, clients: Sequence[int], least: int = 1) -> dict[int, Failed]:
    """Aggregate the updates that are not refused, in order of client id, read one at a time.

    If the last of the updates shows that one before it is out of all proportion, aggregate again without that one.

    Args:
        active_run: the run; its state after `round` is kept there.
        round: the round.
        clients: the ids of those that came through.
        least: where fewer than this are left, nothing is aggregated.

    Returns:
        Whose answers were not taken, and why.

    Raises:
        RunError: the method's state is of another round or not finite, or the work of a client is not there.
    """
    before, memory_index = active_run.state(round - 1)
    done = [active_run.done(round, client) for client in sorted(clients)]
    method = active_run.opened.method
    inspection: RoundInspection | SumsInspection
    if active_run.opened.settings.workers.summed > 1:
        inspection = SumsInspection(active_run.run, active_run.opened, before, done)
    else:
        inspection = RoundInspection(active_run.run, active_run.opened, before, done, active_run.prefetcher)
    if inspection.size > LARGE:
        keep_freed_memory()
    with one_thread():
        settled = False
        while not settled:
            following = None
            wrong = None
            try:
                following = method.aggregate(before, rebase_stale(active_run, round, inspection.updates()))
            except Exception as error:  # by an answer that is refused, perhaps
                wrong = error
            settled = inspection.settle()
            if len(inspection.done) < least:
                return inspection.refused
            if settled and wrong is not None:
                raise wrong
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
    """Yield updates as if all had begun from the newest state: what each changed, weighed by its age, added to it.

    Where rounds wait for all their clients this changes nothing. The mean of what is given is the newest state and the
    mean of (1 + t)^-a times the changes, of answers that began t rounds before it.

    Source: Nguyen et al. 2022, algorithm 1; the weight is that of Xie, Koyejo and Gupta 2019, "Asynchronous Federated
    Optimization", where FedBuff takes a = 1/2.
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
    """Return a message with `weight` times what it changed of the tensors that were sent, added to the newest ones.

    Whole numbers (BatchNorm's counts of batches) stay as they came, and so does what was not sent.
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
    """Return memory and inbox versions after a round; the files get their lasting names here.

    Args:
        run: the run's folder.
        round: the round.
        before: the index after the round before.
        done: what the clients did, in order of their ids.
    """
    paths = RoundPaths(run.path, round)
    memory: dict[int, str] = {}
    sent: dict[int, list[str]] = {}
    sha256: dict[str, str] = {}
    for each in done:
        if each.memory is not None:
            memory[each.client] = target = paths.memory(each.client)
            adopt(run, paths.work / each.memory, target)
            sha256[target] = each.sha256[each.memory]
        for peer in sorted(each.peers):
            target = paths.inbox(peer, each.client)
            adopt(run, paths.work / each.peer(peer), target)
            sent.setdefault(peer, []).append(target)
            sha256[target] = each.sha256[each.peer(peer)]
    sync_files([run.path / path for path in sha256])
    messages = {peer: tuple(targets) for peer, targets in sent.items()}
    return before.after(IndexChange(tuple(each.client for each in done), memory, messages, sha256))
