"""The flow that makes vectors of the images of a data set, for runs on them."""

from __future__ import annotations

from typing import Any

from shoal.tasks.prefect.environment import set_prefect_defaults

set_prefect_defaults()

from dataclasses import asdict  # noqa: E402 (its environment comes first)

from prefect import flow, get_run_logger  # noqa: E402

from shoal.tasks.embed import embed as embed_set  # noqa: E402
from shoal.tasks.prefect.stages import without_tags  # noqa: E402


@flow(name="embed", flow_run_name="embed {data}")
def embed(data: str, encoder: str = "efficientnet-lite0", name: str | None = None) -> dict[str, Any]:
    """Make vectors of the images of a data set with a pretrained encoder.

    Args:
        data: the set of images, built in or your own.
        encoder: efficientnet-lite0, timm:NAME, torchvision:NAME, either with @WEIGHTS, or file:TORCHSCRIPT.
        name: of the new set; none: DATA-ENCODER.

    Returns:
        The new set (`shoal.tasks.embed.EmbeddedSet`), as JSON.
    """
    with without_tags():
        done = embed_set(data, encoder, name)
    get_run_logger().info(done.message)
    return asdict(done)
