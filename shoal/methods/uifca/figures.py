"""The figure of a UIFCA run on images: samples of each flow."""

from __future__ import annotations

from matplotlib.figure import Figure
from torch import Tensor

from shoal.core.streams import SERVER, Streams
from shoal.methods.averaging.vectors import Vectors
from shoal.models.normalising_flows import Flow

IMAGES_PER_FLOW = 10
"""Number of images drawn from each flow."""


def samples_figure(flow: Flow, flows: Tensor, seed: int) -> Figure:
    """Draw a row of images from each flow, (K, IMAGES_PER_FLOW).

    Args:
        flow: a network; each flow's weights are loaded into it.
        flows: weights of the K flows, (K, p).
        seed: of the run.
    """
    vectors = Vectors(flow)
    figure = Figure(figsize=(IMAGES_PER_FLOW * 0.7, len(flows) * 0.75), layout="constrained")
    rows = figure.subplots(len(flows), IMAGES_PER_FLOW, squeeze=False)
    for k, axes in enumerate(rows):
        vectors.load(flow, flows[k])
        generator = Streams(seed, 0, SERVER).torch(f"figure {k}")
        images = flow.eval().sample(IMAGES_PER_FLOW, generator).nan_to_num().cpu()
        for image, place in zip(images, axes, strict=True):
            place.imshow(image.mean(0), cmap="gray", vmin=0, vmax=255)
            place.axis("off")
        axes[0].set_title(f"flow {k}", fontsize=7, loc="left", pad=1)
    return figure
