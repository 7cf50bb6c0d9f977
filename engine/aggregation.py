"""From the finished work of a round's clients to the next server state, in a checkpoint that is not closed yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.at_work import RunAtWork
from engine.checkpoint import adopt, open_round
from engine.finished_work import FinishedWork, load_update
from engine.memory_index import MemoryIndex
from engine.one_thread import one_thread
from engine.round_paths import RoundPaths
from engine.run_folder import RunError, RunFolder
from methods.base import Update


def aggregate(held: RunAtWork, round: int, clients: Sequence[int]) -> None:
    """The method's aggregation over the updates in order of client id, read one at a time.

    Args:
        held: the run; its state after `round` is kept there.
        round: the round.
        clients: the ids of those that came through.

    Raises:
        RunError: the method's state is of another round, or the work of a client is not there.
    """
    before, memory_index = held.state(round - 1)
    done = [held.done(round, client) for client in sorted(clients)]
    updates: Iterator[Update] = (load_update(held.run, round, each) for each in done)
    method = held.opened.method
    with one_thread():
        following = method.aggregate(before, updates)
    if following.round != round:
        raise RunError(f"method {method.name!r} aggregated round {round} into {following.round}")
    after = memory_index_after(held.run, round, memory_index, done)
    open_round(held.run, following, after)
    held.keep_state(following, after)


def memory_index_after(run: RunFolder, round: int, before: MemoryIndex, done: Sequence[FinishedWork]) -> MemoryIndex:
    """Memory and inbox versions after a round; the files get their lasting names here.

    Args:
        run: the run's folder.
        round: the round.
        before: the index after the round before.
        done: what the clients did, in order of their ids.
    """
    paths, after = RoundPaths(run.path, round), before.copy()
    for each in done:
        after.inbox.pop(each.client, None)  # read in this round
    for each in done:
        if each.memory is not None:
            target = paths.memory(each.client)
            adopt(run, paths.work / each.memory, target)
            after.memory[each.client] = target
        for peer in sorted(each.peers):
            target = paths.inbox(peer, each.client)
            adopt(run, paths.work / each.peer(peer), target)
            after.inbox.setdefault(peer, []).append(target)
    return after
