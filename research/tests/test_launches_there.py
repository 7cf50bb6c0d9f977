"""How many kernels a local step has launched, counted on the pretend GPU; a GPU launches about a quarter more."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.methods.training import kept_steps
from shoal.methods.training.graphs import Work
from shoal.methods.training.kept_steps import WARM_UP_STEPS
from shoal_research.benchmarks.device import Case, next_round, world
from tests.pretend_gpu.device import DEVICE, pretending
from tests.pretend_gpu.ledger import Ledger


def launches_a_step(method: str, encoder: str, shape: tuple[int, int, int]) -> float:
    """In round 2, in bf16, of the steps alone: four less two of them."""

    def launches(steps: int) -> int:
        with pretending() as ledger:
            made, cohort = world(Case(method, method, encoder, shape, 1, 4 * steps, 1, 4), DEVICE, "bf16")
            ((message, client),) = next_round(made, cohort)
            ledger.clear()
            made.client_update(message, client)
            return sum(ledger.launches.values())

    return (launches(4) - launches(2)) / 2


@pytest.mark.parametrize(
    ("method", "encoder", "shape", "max_launches"),
    [
        ("fedsimclr", "small-conv", (1, 28, 28), 90),
        pytest.param("fedpnp", "resnet18", (3, 32, 32), 380, marks=pytest.mark.slow),
        ("fedpnp", "small-conv", (1, 28, 28), 185),
        ("fedcc", "small-conv", (1, 28, 28), 150),
        ("ssd", "small-conv", (1, 28, 28), 155),
        ("fedbyol", "small-conv", (1, 28, 28), 130),
        ("fedavg", "mcmahan-small", (1, 28, 28), 42),
    ],
)
def test_a_step_has_few_launches(method: str, encoder: str, shape: tuple[int, int, int], max_launches: int) -> None:
    assert launches_a_step(method, encoder, shape) <= max_launches


class CapturedThere:
    """Stands for `graphs.capture`: what is captured is one launch, whatever it does."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.replayed = 0

    def capture(self, work: Work, generators: Any, device: Any, pool: Any) -> Work:
        """As of `graphs.capture`."""

        def replay() -> None:
            launches = self.ledger.launches.copy()
            waits = self.ledger.waits.copy()
            work()
            self.ledger.launches = launches
            self.ledger.waits = waits
            self.replayed += 1

        return replay


@pytest.mark.parametrize(
    ("method", "launches", "waits"),
    [
        ("fedsimclr", 28, 2),
        ("fedpnp", 50, 3),
        ("fedcc", 28, 2),
        ("ssd", 38, 2),
        ("fedbyol", 40, 2),
        ("fedema", 64, 3),
        ("fedavg", 28, 2),
    ],
)
def test_a_client_has_few_launches_beside_its_steps(
    method: str, launches: int, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a client asks for in round 2 but its replayed graphs: its weights in, its weights and metrics out."""
    encoder = "mcmahan-small" if method == "fedavg" else "small-conv"
    with pretending() as ledger:
        there = CapturedThere(ledger)
        monkeypatch.setattr(kept_steps, "capture", there.capture)
        case = Case(method, method, encoder, (1, 28, 28), 1, 8, 1, 4)
        made, cohort = world(case, DEVICE, "bf16", graphs="on")
        ((message, client),) = next_round(made, cohort)
        for _ in range(WARM_UP_STEPS + 1):
            made.client_update(message, client)
        ledger.clear()
        replayed = there.replayed
        made.client_update(message, client)
        assert there.replayed - replayed >= 2, "both steps, and what comes before them"
        assert sum(ledger.launches.values()) <= launches
        assert ledger.waits.total() <= waits


def test_views_have_few_launches() -> None:
    with pretending() as ledger:
        method, ((message, client),) = world(Case("v", "fedsimclr", "tiny-conv", (1, 8, 8), 1, 8, 1, 4), DEVICE, "fp32")
        make_views, steps = method.make_views, method.local_steps(message, client)
        x = client.train.x()
        ledger.clear()
        make_views(x, steps.generators[0])
        assert sum(ledger.launches.values()) <= 24
