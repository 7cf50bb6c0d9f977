"""The method of a run as it serves new samples."""

from __future__ import annotations

from shoal.data.sets.prepared import DataSpec
from shoal.engine.settings.run_settings import Settings
from shoal.methods.contract.base import Method
from shoal.methods.contract.context import Context
from shoal.methods.registry import METHODS


def served_method(settings: Settings, spec: DataSpec, encoder_sha256: str) -> Method:
    """Return a run's method on the CPU in full precision: new samples are few, and all machines give the same clusters.

    Args:
        settings: of the run.
        spec: of the data that it was trained on.
        encoder_sha256: digest of the weights of its pretrained encoder; empty where it has none.
    """
    context = Context(
        spec,
        settings.model,
        settings.local,
        settings.augment,
        settings.seed,
        encoder_sha256=encoder_sha256,
        clip=settings.privacy.clip,
    )
    return METHODS[settings.method.name](settings.method, context)
