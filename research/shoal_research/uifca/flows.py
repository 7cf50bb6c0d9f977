"""Normalising flows of the UIFCA simulations, with their first weights."""

from __future__ import annotations

from typing import Any

from shoal.core.streams import stream_seed
from shoal.methods.training.local import seeded_build
from shoal.models.normalising_flows import Flow, build_flow
from shoal_research.uifca.standard_flow import StandardRealNVP


def make_flow(seed: int, purpose: str, name: str, *arguments: Any) -> Flow:
    """Build a flow whose first weights follow from (seed, purpose).

    Args:
        seed, purpose: of the draw.
        name: standard, or as of `build_flow`.
        arguments: as of `build_flow`.
    """

    def build() -> Flow:
        if name == "standard":
            return StandardRealNVP(*arguments)
        return build_flow(name, *arguments)

    flow = seeded_build(build, stream_seed(seed, purpose))
    assert isinstance(flow, Flow)
    return flow
