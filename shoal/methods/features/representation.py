"""What is made of samples before they are encoded or clustered: light evened out, counts as logarithms, spectra.

Each is made of one sample alone, so that nothing has to be learnt or sent for it.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, fft

from shoal.data.views.augment import grey_of
from shoal.methods.contract.context import MethodError

Representation = Literal["as-is", "light", "counts", "spectrum"]
KINDS: dict[Representation, str] = {"light": "image", "counts": "vector", "spectrum": "series"}
"""The kind of data that each is made of."""
DEVIATIONS = 3.0
"""Values further from an image's mean are cut; those within fill the range of an image."""
LEAST_DEVIATION = 1 / 255
"""Images with less are not spread further: that would show their noise."""
FLOOR = 1e-2
"""Added to each power, as a share of its channel's mean power: the logarithm of hardly any says nothing."""


def check_kind(representation: Representation, kind: str) -> None:
    """Refuse a representation that is made of other data.

    Raises:
        MethodError: names the data that it is made of.
    """
    made_of = KINDS.get(representation, kind)
    if kind != made_of:
        raise MethodError(
            f"method.representation={representation} is made of {made_of} data, and these are {kind} data"
        )


def represented(x: Tensor, representation: Representation) -> Tensor:
    """Return what is clustered of samples, (n, ...).

    Args:
        x: as `Samples.x` gives them.
        representation: as-is, or one of the others of this file.
    """
    if representation == "light":
        return even_light(x)
    if representation == "counts":
        return x.clamp_min(0).log1p()
    return log_spectrum(x) if representation == "spectrum" else x


def represented_shape(shape: tuple[int, ...], representation: Representation) -> tuple[int, ...]:
    """Return the shape of what is made of one sample of a shape."""
    return (*shape[:-1], shape[-1] // 2) if representation == "spectrum" else shape


def even_light(x: Tensor) -> Tensor:
    """Return images (n, channels, height, width) in [0, 1] as grey ones of one brightness and one contrast."""
    grey = grey_of(x) if x.shape[1] == 3 else x
    deviation, mean = grey.flatten(1).std(1), grey.flatten(1).mean(1)
    scaled = (grey - mean.view(-1, 1, 1, 1)) / deviation.clamp_min(LEAST_DEVIATION).view(-1, 1, 1, 1)
    return (scaled / (2 * DEVIATIONS) + 0.5).clamp(0, 1).expand_as(x)


def log_spectrum(x: Tensor) -> Tensor:
    """Return the logarithm of the power at each frequency of windows (n, channels, length), whatever their phase.

    Returns:
        (n, channels, length // 2): of all frequencies but 0, so that a level says nothing.
    """
    power = fft.rfft(x.float())[..., 1:].abs().square()
    floor = FLOOR * power.mean(-1, keepdim=True)
    spectrum: Tensor = (power + floor).clamp_min(1e-12).log()
    return spectrum
