"""TensorBoard's log of a run: `tensorboard --logdir tensorboard` in the project's home shows all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from shoal.engine.settings import places
from shoal.engine.settings.addresses import masked
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import RunFolder

FOLDER = "tensorboard"
"""The folder of all logs, in the project's home."""


class TensorBoardLog:
    """A log that is open for one run; every round is written, also of a resumed run.

    Args:
        writer: TensorBoard's.
    """

    last = 0

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Log numbers of a round by their names."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def close(self, *, finished: bool) -> None:
        """Close the log."""
        self._writer.close()


def open_log(run: RunFolder, settings: Settings) -> TensorBoardLog:
    """Open the log of a run; numbers that it has of an earlier attempt are replaced.

    Args:
        run: the run's folder.
        settings: of the run.

    Raises:
        ImportError: the package is not installed.
    """
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(places.home() / FOLDER / run.name), purge_step=0)
    text = masked(yaml.safe_dump(settings.to_json(), sort_keys=False))
    writer.add_text("settings", "\n".join(f"    {line}" for line in text.splitlines()))
    return TensorBoardLog(writer)
