"""The settings of an assignment of new files: which model, which folder, and where the tables go."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shoal.engine.settings.sections import Section


class AssignSettings(Section):
    """The settings of an assignment of a folder's new files to the clusters of a champion."""

    model: str = Field(description="registered name whose champion assigns, such as shoal-fedpnp-photos")
    watch: str | None = Field(
        None,
        description="folder to search for new files: images at any depth, or tables and arrays for a model of vectors; "
        "if it has a .dvc file beside it, DVC updates it first",
    )
    into: str = Field(
        "results/assigned", description="folder of the tables and contact sheets, a sub-folder for each model"
    )
    on_odd: Literal["as-set", "skip", "resize"] = Field(
        "as-set", description="images of another size: skip, resize, or as-set: resize if the set was made so"
    )
    uri: str | None = Field(None, description="address of MLflow; none: MLFLOW_TRACKING_URI or the embedded store")
