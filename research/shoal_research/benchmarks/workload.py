"""The workload of the comparison: FedAvg over C clients of N random 28x28 images, one network, plain SGD.

Every engine trains on the same images in the same order, so that the weights they end with can be compared. Needs torch
and numpy alone, so that it also runs in the environment of the other engines.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core.streams import Streams
from shoal.models.plain import McMahanConv

SEED = 0
SHAPE = (1, 28, 28)
CLASSES = 10
ENCODERS = {"mcmahan-small": lambda shape: McMahanConv(shape, (16, 32), 128, 0), "mcmahan": McMahanConv}
"""As in `shoal.models.encoders`, which wants torchvision."""


@dataclass(frozen=True)
class Workload:
    """Sizes of the workload."""

    clients: int = 20
    samples: int = 500
    batch: int = 50
    epochs: int = 1
    rounds: int = 5
    lr: float = 0.05
    encoder: str = "mcmahan-small"

    def to_json(self) -> dict[str, int | float | str]:
        """As JSON."""
        return asdict(self)


class Net(nn.Module):
    """An encoder and a linear layer over the classes."""

    def __init__(self, encoder: str) -> None:
        super().__init__()
        self.encoder = ENCODERS[encoder](SHAPE)
        self.out = nn.Linear(self.encoder.features, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (n, 10)."""
        return self.out(self.encoder(x))


def initial(work: Workload) -> Net:
    """The network of round 0."""
    torch.manual_seed(SEED)
    return Net(work.encoder)


def raw_client(client: int, samples: int) -> tuple[Tensor, Tensor]:
    """A client's images as bytes, uint8 (n, 1, 28, 28), and labels."""
    generator = torch.Generator().manual_seed(1_000 + client)
    x = torch.randint(0, 256, (samples, *SHAPE), generator=generator, dtype=torch.uint8)
    return x, torch.randint(0, CLASSES, (samples,), generator=generator)


@functools.cache
def client_data(client: int, samples: int) -> tuple[Tensor, Tensor]:
    """A client's images as the network takes them, and labels; made once in a process."""
    x, y = raw_client(client, samples)
    return (x.float() / 255 - 0.5) / 0.25, y


def order(work: Workload, client: int, round: int) -> list[Tensor]:
    """The batches of a client in a round."""
    generator = Streams(SEED, round, client).torch("batches")
    return [
        batch
        for _ in range(work.epochs)
        for batch in torch.randperm(work.samples, generator=generator).split(work.batch)
    ]


def train_client(model: nn.Module, work: Workload, client: int, round: int) -> None:
    """Local epochs, in place."""
    x, y = client_data(client, work.samples)
    optimiser = torch.optim.SGD(model.parameters(), lr=work.lr)
    model.train()
    for batch in order(work, client, round):
        optimiser.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimiser.step()
