"""How many kernels a local step has launched, counted on the pretend GPU; a GPU launches about a quarter more."""

from __future__ import annotations

import pytest

from benchmarks.device import Case, next_round, world
from tests.pretend_gpu.device import DEVICE, pretending


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
    ("method", "encoder", "shape", "most"),
    [
        ("fedsimclr", "small-conv", (1, 28, 28), 140),  # 242 before
        pytest.param("fedpnp", "resnet18", (3, 32, 32), 590, marks=pytest.mark.slow),  # 774 before
        ("fedpnp", "small-conv", (1, 28, 28), 330),
        ("fedavg", "mcmahan-small", (1, 28, 28), 60),
    ],
)
def test_a_step_has_few_launches(method: str, encoder: str, shape: tuple[int, int, int], most: int) -> None:
    assert launches_a_step(method, encoder, shape) <= most


def test_views_have_few_launches() -> None:
    with pretending() as ledger:
        method, ((message, client),) = world(Case("v", "fedsimclr", "tiny-conv", (1, 8, 8), 1, 8, 1, 4), DEVICE, "fp32")
        make_views, steps = method.make_views, method.local_steps(message, client)
        x = client.train.x()
        ledger.clear()
        make_views(x, steps.generators[0])
        assert sum(ledger.launches.values()) <= 30
