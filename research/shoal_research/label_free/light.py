"""Which tuning sets of images are clustered in even light, with other light at each site and without.

    python -m shoal_research.label_free.light        # an hour on a core; needs the packaged encoder

Without effects each set is dealt four times evenly and by Dirichlet(0.1); with other light once, evenly. Where even
light may be taken, or light moves clusters a little, the ACC by landmarks is measured as is, evened, and without light.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.methods.auto import ENCODER, FEATURE_SPACE, LAYERS, LIGHT_SHARE
from shoal.methods.clustering.client_samples import ClientSamples
from shoal.methods.features.representation import even_light
from shoal.methods.scores.no_groups import gain_over_no_groups
from shoal.methods.scores.own_neighbours import dependence_on_clients
from shoal.models.frozen import frozen_encoder, layer_widths_of
from shoal_research.label_free.directions import layers_of
from shoal_research.label_free.sites import CLIENTS, DEALINGS, Sites, lit, some_of
from shoal_research.label_free.tables import LEAST_BOUND, LIGHT
from shoal_research.label_free.tuning_sets import IMAGES

DEALT = 4
SLIGHT = 0.15
"""How much clusters tell of the client where light moves them a little."""


def in_unit_range(images: np.ndarray) -> Tensor:
    """Return images uint8 (n, side, side) or of three colours as float (n, 3, side, side) in [0, 1]."""
    colours = images if images.ndim == 4 else np.repeat(images[..., None], 3, 3)
    return torch.from_numpy(colours).permute(0, 3, 1, 2).float() / 255


def evened(images: np.ndarray) -> np.ndarray:
    """Return images uint8 (n, side, side, 3) in even light."""
    return (even_light(in_unit_range(images)).permute(0, 2, 3, 1) * 255).round().to(torch.uint8).numpy()


@torch.no_grad()
def encoded(images: Tensor) -> Tensor:
    """Return features of images, float64 (n, d)."""
    network = frozen_encoder(ENCODER)
    return torch.cat([network(batch) for batch in images.split(64)]).double()


def tells(features: tuple[Tensor, Tensor], site: np.ndarray, clusters: int, seed: int) -> dict[str, float]:
    """Return how much clusters tell of the client, as is and evened, and if it falls the gain in even light."""
    of = torch.from_numpy(site)
    by, light_by = (dependence_on_clients(ClientSamples(x, of, CLIENTS), clusters, seed) for x in features)
    told = {"by": by, "light_by": light_by}
    if by >= LEAST_BOUND and light_by < LIGHT_SHARE * by:
        gain = gain_over_no_groups(features[1].numpy(), clusters, np.random.default_rng(0)).gain
        told["light_gain"] = gain or 0.0
    return told


def accuracy(images: np.ndarray, y: np.ndarray, site: np.ndarray) -> float:
    """Return the ACC of clusters by landmarks among the layers' features."""
    with tempfile.TemporaryDirectory() as folder:
        world = Sites(layers_of(images), y, site, 0, Path(folder), layer_widths_of(LAYERS))
        return world.accuracy(**FEATURE_SPACE["method"])


def judged(x: np.ndarray, y: np.ndarray) -> dict[str, list[dict[str, float]]]:
    """Return what clusters of a set tell of clients: evenly, by Dirichlet(0.1), and evenly in other light."""
    clusters = len(np.unique(y))
    images = in_unit_range(x)
    features = encoded(images), encoded(even_light(images))
    told: dict[str, list[dict[str, float]]] = {}
    for dealing, deal in DEALINGS.items():
        for seed in range(DEALT):
            told.setdefault(dealing, []).append(tells(features, deal(y, np.random.default_rng(seed)), clusters, seed))
    rng = np.random.default_rng(0)
    site = DEALINGS["even"](y, rng)
    shown = lit(x, site, rng)
    images = in_unit_range(shown)
    one = tells((encoded(images), encoded(even_light(images))), site, clusters, 0)
    if LEAST_BOUND <= one["by"] < SLIGHT or one["light_by"] < LIGHT_SHARE * one["by"]:
        one |= {"acc": accuracy(shown, y, site), "light_acc": accuracy(evened(shown), y, site)}
        one["plain_acc"] = accuracy(x, y, site)
    return {**told, "light": [one]}


def measure() -> None:
    """Measure every set that the file does not hold, and write the file after each."""
    kept: dict[str, Any] = json.loads(LIGHT.read_text()) if LIGHT.exists() else {}
    for name in IMAGES.keys() - kept.keys():
        kept[name] = judged(*some_of(IMAGES[name]))
        LIGHT.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")
        print(name, kept[name]["light"], flush=True)


if __name__ == "__main__":
    measure()
