"""Five nights of a project in its home folder, one after the other: each prints a line of JSON of what became of it.

The first makes a champion of few images; the second brings many more; in the third nothing is new; in the fourth what
comes is broken, and then wholly wrong; in the fifth one class floods a client. After the second MLflow is not told of
its decision, as after a kill; after the fifth comes one that is given no time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from shoal.core.records import record_to_json
from shoal.data.sets.prepare import prepare
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.run_order import in_order
from shoal.flows.nightly import nightly
from shoal.lifecycle.claim import BEGAN
from shoal.lifecycle.night_settings import NightSettings
from shoal.review.mlflow_log.champions import MOVE
from tests.conftest import SMALL

CLIENTS = ("north", "south", "west")
SETTINGS: dict[str, Any] = {
    "data": {"name": "photos", "limit": None},
    "partition": {"kind": "auto", "clients": None},
    "model": {"clusters": 10},
    "local": {"epochs": 2, "batch": 32, "lr": 0.003},
    "rounds": 2,
    "tracking": {"mlflow": True},
}
NAME = "shoal-fedpnp-photos"


def write(folder: Path, images: np.ndarray, first: int, clients: tuple[str, ...] = CLIENTS) -> None:
    """Grey images as files, dealt to clients in turn, and named by their numbers."""
    for number, image in enumerate(images, first):
        path = folder / clients[number % len(clients)] / f"{number:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.round(image * 255 / 16).astype(np.uint8)).save(path)


def state(home: Path) -> dict[str, Any]:
    """What a night may change: the set, the registry and the runs."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{places.mlflow_store()}/mlflow.db")
    model = client.get_registered_model(NAME)
    versions = client.search_model_versions(f"name = '{NAME}'")
    photos = prepare("photos", places.store())
    champion = client.get_model_version(NAME, model.aliases["champion"])
    return {
        "data": photos.manifest.digest,
        "train": photos.manifest.train,
        "test": photos.manifest.test,
        "clients": photos.manifest.extra["clients"],
        "versions": [each["digest"] for each in photos.manifest.extra.get("versions", [])],
        "aliases": {key: str(value) for key, value in model.aliases.items()},
        "models": len(versions),
        "champion": {key: value for key, value in champion.tags.items() if key != MOVE},
        "runs": [path.parent.name for path in in_order(places.runs())],
    }


def night(home: Path, **changes: Any) -> None:
    """A night; its line says what it returned, or its error, and what is there after it."""
    settings = make_settings(merge(SMALL, SETTINGS))
    found: dict[str, Any] = {}
    try:
        found["night"] = nightly(settings, NightSettings(**{"watch": "incoming", "margin": 0.02, **changes}))
        run = RunFolder(places.runs() / found["night"]["run"])
        found["events"] = [event.to_json() for event in run.events() if event.kind in ("night_starts", "drift")]
        origin = run.lineage().origin
        found["origin"] = None if origin is None else record_to_json(origin)
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps({**found, **state(home)}), flush=True)


def cut_short(home: Path) -> None:
    """As after a kill between the decision of the newest run and what MLflow is told of it."""
    from mlflow import MlflowClient

    RunFolder.find("latest").event(BEGAN)
    client = MlflowClient(tracking_uri=f"sqlite:///{places.mlflow_store()}/mlflow.db")
    client.set_registered_model_alias(NAME, "champion", "1")
    client.delete_registered_model_alias(NAME, "previous")
    client.delete_model_version_tag(NAME, "2", MOVE)
    client.delete_model_version_tag(NAME, "2", "shoal.night.decision")


def main() -> None:
    """All of them."""
    home = places.home()
    incoming = home / "incoming"
    digits = load_digits()
    images, labels = digits.images, digits.target
    write(incoming, images[:150], 0)
    night(home)
    write(incoming, images[150:750], 150)
    write(incoming, images[750:810], 750, ("abroad",))
    night(home)
    cut_short(home)
    night(home)
    broken = incoming / "north" / "broken.png"
    broken.write_bytes((incoming / "north" / "00000.png").read_bytes()[:60])
    write(incoming, images[810:840], 810)
    night(home, on_bad="refuse")
    broken.unlink()
    for path in incoming.glob("*/008[123]?.png"):
        path.unlink()
    rng = np.random.default_rng(0)
    write(incoming, rng.integers(0, 17, (60, 8, 8)), 2000)
    night(home)
    for path in incoming.glob("*/020??.png"):
        path.unlink()
    ones = images[840:][labels[840:] == 1]
    write(incoming, ones[:60], 3000, ("south",))
    night(home)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
