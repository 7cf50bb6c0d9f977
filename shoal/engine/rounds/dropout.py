"""Simulated dropout: clients that were drawn for a round and do not answer."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.streams import Streams


def answering_clients(drawn: Sequence[int], round: int, seed: int, probability: float) -> list[int]:
    """Return the clients that answer, in their order.

    Each client has its own draw, from the stream of client and round. If all would drop out, the client with the
    largest draw answers, so that a round has at least one answer and no client is favoured: for clients of equal weight
    the mean over the answers is an unbiased estimate of the mean over the drawn clients.

    Args:
        drawn: ids of the clients that were drawn for the round.
        round: the round.
        seed: of the run.
        probability: of a client to drop out.
    """
    if not probability:
        return list(drawn)
    draws = {client: float(Streams(seed, round, client).numpy("dropout").random()) for client in drawn}
    answer = [client for client in drawn if draws[client] >= probability]
    return answer or [max(drawn, key=lambda client: (draws[client], -client))]
