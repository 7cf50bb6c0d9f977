"""From the finished work of a round's clients to the next server state, in a checkpoint that is not closed yet."""

from __future__ import annotations

from collections.abc import Sequence

from engine.at_work import RunAtWork
from engine.checkpoint import adopt, open_round, sync_files
from engine.finished_work import FinishedWork
from engine.inspection import RoundInspection, check_state
from engine.memory_index import IndexChange, MemoryIndex
from engine.one_thread import one_thread
from engine.round_paths import RoundPaths
from engine.run_folder import RunError, RunFolder
from engine.wire import Failed


def aggregate(held: RunAtWork, round: int, clients: Sequence[int], least: int = 1) -> dict[int, Failed]:
    """The method's aggregation over the updates that are not refused, in order of client id, read one at a time.

    Where the last of the updates shows that one before it is out of all proportion, it is done again without that one.

    Args:
        held: the run; its state after `round` is kept there.
        round: the round.
        clients: the ids of those that came through.
        least: where fewer than this are left, nothing is aggregated.

    Returns:
        Whose answers were not taken, and why.

    Raises:
        RunError: the method's state is of another round or not finite, or the work of a client is not there.
    """
    before, memory_index = held.state(round - 1)
    done = [held.done(round, client) for client in sorted(clients)]
    method = held.opened.method
    inspection = RoundInspection(held.run, held.opened, before, done)
    with one_thread():
        settled = False
        while not settled:
            following, wrong = None, None
            try:
                following = method.aggregate(before, inspection.updates())
            except Exception as error:  # by an answer that is refused, perhaps
                wrong = error
            settled = inspection.settle()
            if len(inspection.done) < least:
                return inspection.refused
            if settled and wrong is not None:
                raise wrong
        assert following is not None
        check_state(method, before, following)
    if following.round != round:
        raise RunError(f"method {method.name!r} aggregated round {round} into {following.round}")
    after = memory_index_after(held.run, round, memory_index, inspection.done)
    open_round(held.run, following, after)
    held.keep_state(following, after)
    return inspection.refused


def memory_index_after(run: RunFolder, round: int, before: MemoryIndex, done: Sequence[FinishedWork]) -> MemoryIndex:
    """Memory and inbox versions after a round; the files get their lasting names here.

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
