"""The verdict of the plain default on the ten unseen sets without their labels, at their own sites.

    python -m shoal_research.label_free.unlabelled        # three minutes on a core; needs the packaged encoder

The words, and the numbers that they rest on, go beside those of K-means on the same sets (`groups`).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

import shoal
from shoal.engine.store.codec import read_sealed
from shoal.review.results.clusters import FACTS
from shoal_research.label_free.tables import GROUPS, RUNS, tuning_figures, write_pages
from shoal_research.unseen.sets import SEED, SETS, samples_of

DIGITS = 2


def word_of(key: str) -> list[Any]:
    """Return gain, the neighbours' agreement and that of the best null baseline, with the word, of a set's run."""
    samples, site = samples_of(key, SEED)
    with tempfile.TemporaryDirectory() as home:
        os.environ["SHOAL_HOME"] = home
        folder = Path(home) / "mine"
        if samples.columns is None:
            for number, (image, own) in enumerate(zip(samples.x, site, strict=True)):
                file = folder / f"site-{own + 1}" / f"{number:05}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image).save(file)
        else:
            folder = folder.with_suffix(".csv")
            rows = pd.DataFrame(samples.x, columns=list(samples.columns))
            rows.assign(client=[f"site-{own + 1}" for own in site]).to_csv(folder, index=False)
        shoal.add_data(folder, "mine")
        silent = {"tracking.mlflow": False, "tracking.prefect": "off"}
        run = shoal.run({"data.name": "mine", "model.clusters": SETS[key].classes, **silent})
        facts = read_sealed(run.path / FACTS)
    compared = facts["comparison"]
    numbers = [compared["groups"]["gain"], compared["neighbours"], max(compared["baseline_neighbours"].values())]
    return [[round(number, DIGITS) for number in numbers], facts["verdict"]["word"]]


if __name__ == "__main__":
    kept = json.loads(GROUPS.read_text())
    kept[RUNS] = {}
    for name in SETS:
        kept[RUNS][name] = [word_of(name)]
        print(name, kept[RUNS][name], file=sys.stderr, flush=True)
    GROUPS.write_text(json.dumps(kept).replace(']], "', ']],\n"') + "\n")
    write_pages(tuning_figures())
