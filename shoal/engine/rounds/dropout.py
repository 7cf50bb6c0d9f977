"""Simulated dropout: clients that were chosen for a round and do not answer."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.streams import Streams


def answering(chosen: Sequence[int], round: int, seed: int, probability: float) -> list[int]:
    """Those of the chosen clients that answer, in their order.

    Each drops out by a draw of its own, from the stream of client and round. Of clients that would all drop out the one
    with the greatest draw answers, so that a round has at least one answer and no client is favoured: the mean over
    those that answer is an unbiased estimate of the mean over the chosen, where clients weigh the same.

    Args:
        chosen: ids of the clients that were chosen for the round.
        round: the round.
        seed: of the run.
        probability: with which a client drops out.
    """
    if not probability:
        return list(chosen)
    draws = {client: float(Streams(seed, round, client).numpy("dropout").random()) for client in chosen}
    answer = [client for client in chosen if draws[client] >= probability]
    return answer or [max(chosen, key=lambda client: (draws[client], -client))]
