"""The settings of a night: the source of new data, the decision between two models, and the alarms."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shoal.data.intake.options import OnBad, OnOdd
from shoal.engine.settings.sections import Section


class NightSettings(Section):
    """The settings of nights, which repeat a training while data grow; other settings describe the training."""

    watch: str | None = Field(
        None,
        description="folder with a sub-folder of images for each client, to be searched for new images; or with tables "
        "of new rows, for a set that was made of a table; if it has a .dvc file beside it, DVC updates it first; none: "
        "use the data set as it is",
    )
    labels: str | None = Field(None, description="CSV file with the columns file and label, for the images in `watch`")
    on_bad: OnBad = Field(
        "skip",
        description="what to do about new images that are unreadable, in colour although the set is grey, or different "
        "from the set's images of the same name, and about tables that do not fit the set: skip them and tell you, or "
        "refuse the night",
    )
    on_odd: OnOdd = Field(
        "skip",
        description="what to do about new images of another size: skip them and tell you, resize them, or refuse the "
        "night",
    )
    bad: float = Field(
        0.2,
        ge=0,
        le=1,
        description="largest share of the new images, or tables, that may be skipped; above it the night is refused; a "
        "single skipped file never refuses it",
    )
    held_out: float = Field(
        0.2,
        gt=0,
        le=0.5,
        description="share of each client's new samples to hold out for the comparison of models",
    )
    strange: float = Field(
        0.5,
        gt=0,
        le=1,
        description="share of new samples that are unlike all earlier ones (farther from them than 99 % of these are "
        "from each other) above which the night is refused; 1: never",
    )
    start: Literal["champion", "scratch"] = Field(
        "champion", description="initial state of the training: the champion's; scratch: the method's own"
    )
    score: Literal["auto", "neighbours", "acc"] = Field(
        "auto",
        description="score on the held-out images that decides; neighbours needs no labels; auto: acc with labels, "
        "neighbours without",
    )
    margin: float = Field(
        0.01, ge=0, le=1, description="difference of the scores by which the challenger must beat the champion"
    )
    promote: Literal["auto", "ask"] = Field(
        "auto",
        description="what becomes of a better challenger: auto: it is the champion at once; ask: it waits until you "
        "approve it with `shoal model promote RUN` or give it the alias champion on MLflow's page, and so does a first "
        "model whose verdict is not good",
    )
    drift: float = Field(
        0.01,
        gt=0,
        lt=1,
        description="probability of a false alarm in a night, for the cluster shares of new images",
    )
    force: bool = Field(False, description="train even if there are no new images")
