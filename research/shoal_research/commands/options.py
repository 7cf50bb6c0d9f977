"""What the commands of studies share."""

from __future__ import annotations

from typing import Annotated

import typer

Scale = Annotated[
    str,
    typer.Option(
        help="scale of the study: cpu fits two cores, large a GPU for a quarter of an hour, paper is that of the paper"
    ),
]
COLOURS = {"reproduced": "green", "opposite": "red", "smaller than claimed": "red"}
"""Colours of verdicts; verdicts that leave a claim open are yellow."""
