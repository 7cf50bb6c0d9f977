"""The images a trained model is most certain of, cluster by cluster."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes

from shoal.engine.store.kept_state import read_state
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.run_folder import RunError, RunFolder

BATCH = 512
GAP = 1
"""Pixels between two images."""


@dataclass(frozen=True)
class CertainImages:
    """One cluster: how many training images it has, and the most certain, uint8 (m, channels, height, width)."""

    cluster: int
    size: int
    images: np.ndarray


def certain_images(run: RunFolder, count: int) -> list[CertainImages]:
    """Return the `count` training images with the largest soft assignment to each cluster of the final model.

    Args:
        run: a run on images, of a method whose server assigns clusters.
        count: images for each cluster; a smaller cluster gives all it has.

    Raises:
        RunError: no round is finished, or the data are not images. StoreError: the state is damaged.
        MethodError: the method's server holds no model.
    """
    opened = OpenedRun(run)
    checkpoint = read_state(run)
    if opened.prepared.manifest.kind != "image":
        raise RunError(f"run {run.name} is on {opened.prepared.manifest.kind}s: expected a run on images")
    predict = opened.method.predictor(checkpoint.judged)
    images = opened.prepared.train_x
    parts = [
        predict(torch.from_numpy(np.array(images[start : start + BATCH])).float() / 255).soft
        for start in range(0, len(images), BATCH)
    ]
    certainty, cluster = (part.cpu().numpy() for part in torch.cat(parts).max(1))
    found = []
    for k in range(parts[0].shape[1]):
        members = np.flatnonzero(cluster == k)
        first = members[np.argsort(-certainty[members], kind="stable")[:count]]
        found.append(CertainImages(k, len(members), np.array(images[first])))
    return found


def draw_rows(axes: Axes, clusters: list[CertainImages], count: int) -> None:
    """Draw a row of images for each cluster, with its size beside it."""
    if not clusters:
        return
    _, height, width = clusters[0].images.shape[1:]
    step = height + GAP
    sheet = np.full((len(clusters) * step - GAP, count * (width + GAP) - GAP, 3), 255, dtype=np.uint8)
    for row, each in enumerate(clusters):
        for column, image in enumerate(each.images):
            left = column * (width + GAP)
            sheet[row * step : row * step + height, left : left + width] = image.transpose(1, 2, 0)
    axes.imshow(sheet, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([row * step + height / 2 - 0.5 for row in range(len(clusters))])
    axes.set_yticklabels([f"cluster {each.cluster}\n{each.size} images" for each in clusters], fontsize=7)
    axes.tick_params(left=False)
    for side in axes.spines.values():
        side.set_visible(False)
