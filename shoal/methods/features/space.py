"""The space in which vectors are clustered: what is subtracted, projected and scaled before distances are taken.

The map from vectors to that space follows from sums over all clients, so no sample leaves a client: the mean, the
standard deviation of each column, and the principal components (see `components`).

Symbols in shapes: n samples, d features, k dimensions of the space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.setting import setting
from shoal.data.sets.prepared import DataSpec
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.message import Tensors
from shoal.methods.features.representation import Representation
from shoal.methods.features.spectral import in_spectral_space

MEAN = "space.mean"
PROJECTION = "space.projection"
SCALE = "space.scale"
"""Among the server's tensors, float64: mean (d,), a scale for each column (d,), and a projection (d, k)."""
LANDMARKS = "space.landmarks"
SPECTRAL = "space.spectral"
"""Among the server's tensors with landmarks, float64: s sets of them (s, m, k), and the projections of affinities to
these, (s, m, c)."""
OFFSET_MEAN = "offsets.mean"
"""Among the server's tensors where sites find offsets for landmarks, float64: the mean of all vectors, (k,)."""
NO_SPREAD = 1e-12
"""A column whose variance is below this share of its mean square counts as constant."""

MOMENTS_ROUNDING = 1e-10
"""Allowed error of sums of squares, as a share."""


@dataclass(frozen=True)
class SpaceSettings:
    """What is done to vectors before they are clustered."""

    representation: Representation = setting(
        "as-is",
        "what is made of samples first: light (images, grey, of one brightness and contrast, where sites differ in "
        "light or stain), counts (rows of whole numbers, most of them 0, as log(1 + x)), spectrum (windows of series, "
        "as the log of each channel's power spectrum, whatever their phase)",
    )
    space: Literal["plain", "directions"] = setting(
        "plain",
        "distances of vectors as they are (plain), or of their directions, for embeddings: each vector has unit "
        "length, and principal components have variances that are made more equal, sqrt(v) in place of v",
    )
    standardise: bool | None = setting(
        None,
        "scale each column to variance 1 over the federation (of counts: divide it by the root of its deviation); "
        "none: where columns are measurements (tables, and windows of several channels), not for embeddings and images",
    )
    components: int = setting(
        0, "number of principal components of the federation to keep; 0: all columns as they are", ge=0
    )
    sites: Literal["estimate", "centre", "ignore"] = setting(
        "estimate",
        "where sites differ by an offset, such as another scanner: estimate it beside the clusters, and use it where "
        "the cost says so; centre: subtract each site's own mean first, whatever it holds; ignore",
    )
    landmarks: int = setting(
        0,
        "spectral clustering by so many landmarks, twelve a cluster at least and 1,000 at most: groups of any shape "
        "are found, which K-means alone cuts (120, say); 0: distances in the space count as they are",
        ge=0,
    )

    @property
    def directions(self) -> bool:
        """Whether vectors have unit length where they are clustered."""
        return self.space == "directions"

    @property
    def centre_sites(self) -> bool:
        """Whether clients' vectors lose their own mean."""
        return self.sites == "centre"

    @property
    def whitening(self) -> float:
        """Power w by which components are whitened: a variance v becomes v^(1 - w)."""
        return 0.5 if self.directions else 0.0

    def settled(self, spec: DataSpec) -> Self:
        """Return the same settings with what `standardise: none` means for a data set."""
        if self.standardise is not None:
            return self
        return replace(self, standardise=spec.measurements)

    @property
    def measured(self) -> bool:
        """Whether the space follows from moments of all clients' vectors."""
        return bool(self.standardise) or self.components > 0 or self.centre_sites


def column_moments(x: Tensor) -> Tensors:
    """Return the sums of vectors x (n, d) from which columns are standardised: `samples`, `total`, `squares` (d,)."""
    x = x.double()
    return {
        "samples": torch.tensor(float(len(x)), dtype=torch.float64),
        "total": x.sum(0),
        "squares": x.square().sum(0),
    }


def group_variance(variance: Tensor, widths: Sequence[int]) -> Tensor:
    """Return for each column the variance that its group has in all, (d,).

    Args:
        variance: of each column, (d,).
        widths: numbers of columns of the groups; none: each column is one.
    """
    if not widths:
        return variance
    return torch.cat([group.sum().expand(len(group)) for group in variance.split(list(widths))])


def fitted_space(
    sums: Tensors, settings: SpaceSettings, layer_widths: Sequence[int] = (), column_widths: Sequence[int] = ()
) -> Tensors:
    """Return the tensors of the space from the sums of all clients' moments.

    Args:
        sums: of `column_moments`.
        settings: what the space is; components follow later (`components`).
        layer_widths: numbers of columns from each group of an encoder's layers: each group gets the same variance in
            all. None: columns are all alike.
        column_widths: numbers of columns of each measurement, which are standardised together: the values of a column
            of text count as one measurement. None: each column is one.

    Raises:
        MethodError: no samples, or columns that are all constant.
    """
    if not sums["samples"] > 0:
        raise MethodError("no client has enough samples to measure the columns by: set method.min_points lower")
    mean = sums["total"] / sums["samples"]
    mean_square = sums["squares"] / sums["samples"]
    variance = mean_square - mean.square()
    varies = variance > NO_SPREAD * mean_square
    if not bool(varies.any()):
        raise MethodError("every column is the same for all samples: there is nothing to cluster")
    space = {MEAN: mean}
    if settings.standardise or layer_widths:
        widths = column_widths if settings.standardise else layer_widths
        space[SCALE] = torch.where(varies, group_variance(variance.masked_fill(~varies, 0), widths).rsqrt(), 0.0)
        if settings.representation == "counts":  # 0 stays 0, and columns of rare words do not outweigh all others
            return {MEAN: 0 * mean, SCALE: space[SCALE].sqrt()}
    return space


def shortened(sums: Tensors, space: Tensors) -> tuple[Tensors, Tensor]:
    """Return the space with rows whose root mean square length is 1, and the variance of each column in it (d,).

    Args:
        sums: of `column_moments`.
        space: tensors of `fitted_space`.
    """
    variance = sums["squares"] / sums["samples"] - space[MEAN].square()
    scale = space.get(SCALE, torch.ones_like(variance))
    scale = scale * (variance * scale.square()).sum().rsqrt()
    return {**space, SCALE: scale}, variance * scale.square()


def unscaled(moments: Tensors, scale: Tensor) -> Tensors:
    """Return moments of scaled columns as those of the columns themselves; of columns that are left out they are 0."""
    size = scale.where(scale > 0, 1)
    return {**moments, "total": moments["total"] / size, "squares": moments["squares"] / size.square()}


def energy(sums: Tensors, space: Tensors, *, centre_sites: bool) -> float:
    """Return the largest sum of squared norms that one client's vectors can have once they are centred and scaled.

    It is the sum itself, and what rounding may add to it.

    Args:
        sums: of `column_moments`, of at least one vector.
        space: tensors of `fitted_space`.
        centre_sites: whether the client's vectors lose their own mean, not the federation's.
    """
    samples = sums["samples"]
    mean = sums["total"] / samples if centre_sites else space[MEAN]
    squares = sums["squares"] - 2 * mean * sums["total"] + samples * mean.square()
    rounding = MOMENTS_ROUNDING * (sums["squares"] + samples * mean.square())
    scale = space.get(SCALE, torch.ones_like(mean))
    return float(((squares.clamp_min(0) + rounding) * scale.square()).sum())


def projected(x: Tensor, space: Tensors, site_mean: Tensor | None = None) -> Tensor:
    """Return vectors x (n, d) centred, scaled and projected, as far as the space says, float64 (n, k).

    Args:
        x: vectors, as they are.
        space: tensors of `fitted_space`, with components also their projection; empty where nothing was measured.
        site_mean: (d,), the mean of the client that holds them, subtracted in place of the federation's.
    """
    x = x.double()
    if MEAN in space:
        x = x - (space[MEAN].to(x.device) if site_mean is None else site_mean.to(x.device))
    if SCALE in space:
        x = x * space[SCALE].to(x.device)
    return x @ space[PROJECTION].to(x.device) if PROJECTION in space else x


def among_landmarks(z: Tensor, space: Tensors, *, directions: bool, offset: Tensor | None = None) -> Tensor:
    """Return projected vectors z (n, k), with `directions` of unit length, by landmarks where the space has them.

    Args:
        z: vectors.
        space: tensors of the server.
        directions: whether directions are compared.
        offset: of their site (k,), or of the site of each, (n, k), subtracted before landmarks count; None: none.
    """
    if directions:
        z = F.normalize(z, dim=1)
    if offset is not None:
        z = z - offset
    return in_spectral_space(z, space[LANDMARKS], space[SPECTRAL]) if SPECTRAL in space else z


def in_space(
    x: Tensor, space: Tensors, *, directions: bool, site_mean: Tensor | None = None, offset: Tensor | None = None
) -> Tensor:
    """Return vectors x (n, d) in the space in which they are clustered, float64 (n, k): see the two steps above."""
    return among_landmarks(projected(x, space, site_mean), space, directions=directions, offset=offset)
