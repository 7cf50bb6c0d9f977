"""What the closed rounds of a run say of its clients: how long they took, and how often they were refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from shoal.engine.store.manifest import RoundRecord

MAX_REFUSALS = 3
"""Rounds in which a client's message is refused before the client is quarantined: it takes no more part in its run."""


class ClientHistory:
    """Times and refusals of the clients of a run.

    Attributes:
        seconds_per_sample: mean time of local work for a training sample, in the newest round; None: not known yet.
        refusals: number of rounds in which each client was refused.
        lost: the round in which each client was lost to a sum, which goes on without it (`SummedRounds`).
    """

    def __init__(self) -> None:
        self.seconds_per_sample: float | None = None
        self.refusals: Counter[int] = Counter()
        self.lost: dict[int, int] = {}

    def add(self, record: RoundRecord) -> None:
        """Add a closed round."""
        samples = sum(row.samples for row in record.clients)
        self.seconds_per_sample = sum(row.seconds for row in record.clients) / max(1, samples)
        self.refusals = Counter({int(client): rounds for client, rounds in record.refusals.items()})

    @property
    def quarantined(self) -> list[int]:
        """The ids of the quarantined and the lost clients, in order."""
        return sorted({*self.lost, *(client for client, rounds in self.refusals.items() if rounds >= MAX_REFUSALS)})

    def refusals_with(self, refused: Iterable[int]) -> Mapping[str, int]:
        """Return in how many rounds each client was refused, with a round that is not added yet."""
        counts = self.refusals + Counter(refused)
        return {str(client): rounds for client, rounds in sorted(counts.items())}
