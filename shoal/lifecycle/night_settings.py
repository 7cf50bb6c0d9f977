"""The settings of a night: where new data come from, how models are compared, and when it warns."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shoal.data.choices import OnBad, OnOdd
from shoal.engine.settings.sections import Section


class NightSettings(Section):
    """How nights repeat a training while data grow; the training itself is the other settings'."""

    watch: str | None = Field(
        None,
        description="folder with one sub-folder of images per client, looked through for new ones; where a .dvc file "
        "lies beside it, DVC brings it up to date first; none: the data set stays as it is",
    )
    labels: str | None = Field(None, description="CSV with the columns file and label, of the images in `watch`")
    on_bad: OnBad = Field("refuse", description="new images that cannot be read: refuse the night, or skip them")
    on_odd: OnOdd = Field("refuse", description="new images of another size: refuse the night, skip or resize them")
    held_out: float = Field(
        0.2, gt=0, le=0.5, description="share of the new images that is held out, by a hash of each, to judge models on"
    )
    strange: float = Field(
        0.5,
        gt=0,
        le=1,
        description="the night is refused where more than this share of the new images is unlike every image before: "
        "farther from all of them than 99 % of these are from each other; 1: never",
    )
    start: Literal["champion", "scratch"] = Field(
        "champion", description="state that the training starts from: the champion's, or the method's own"
    )
    score: Literal["auto", "neighbours", "acc", "nmi"] = Field(
        "auto",
        description="score on the held-out part that decides; neighbours needs no labels; auto: acc where there are "
        "labels, else neighbours",
    )
    margin: float = Field(
        0.01, ge=0, le=1, description="by how much the challenger must be better than the champion to take its place"
    )
    drift: float = Field(
        0.01,
        gt=0,
        lt=1,
        description="probability of a false alarm in a night, for cluster shares and uniformity of new images",
    )
    minutes: float = Field(
        480, gt=0, description="time limit of each part of the night, such as the training or the judging"
    )
    force: bool = Field(False, description="train also where nothing is new")
