"""The tables of docs/which_method.md and docs/number-of-clusters.md, made from the kept figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.methods.auto import ENCODER, LAYERS, PIXELS_AHEAD, UNEVEN_SPREAD, Facts, rule_for
from shoal.models.encoders import PIXELS
from shoal_research.label_free.calibrate import FILE
from shoal_research.words import markdown_table

BEGIN = "<!-- made by python -m shoal_research.label_free: {} -->"
END = "<!-- end -->"
SPACES = {ENCODER: "encoder", LAYERS: "encoder", PIXELS: "pixels"}
"""The names of spaces among the figures, by the encoder that images are clustered by."""
ROOT = FILE.parents[3]
"""The product's pages."""
NULL = ("pixels", "encoder", "untrained")
GROUPS = FILE.with_name("label_free_groups.json")
ONE_BY_ONE = ("sets", "unseen")
"""Kinds of the verdicts' figures that are sets, and not draws."""
FIFTH = 0.2
"""A number of clusters is close if it is off by at most this share of the classes."""


def images_count(figures: Mapping[str, Any]) -> str:
    """Return the rule for images, and on how many of the sets it holds."""
    return (
        f"Pixels are chosen if their agreement is higher by more than {PIXELS_AHEAD:.2f}: "
        f"{reached(images_reached(figures))} image sets are at or above every null baseline less .02."
    )


def tables_count(figures: Mapping[str, Any]) -> str:
    """Return the rule for tables, and on how many of the sets it holds."""
    return (
        f"Columns are standardised from a spread of {UNEVEN_SPREAD:g} on: "
        f"{reached(tables_reached(figures))} tables are at or above K-means on raw columns less .02."
    )


def landmark_gains(figures: Mapping[str, Any]) -> dict[str, tuple[str, float, float]]:
    """Return by set the space that is chosen for it, the mean ACC of K-means there, and that by landmarks."""
    found = {}
    for kind in ("images", "tables"):
        for name, each in figures[kind].items():
            if kind == "images":
                space = SPACES[rule_for(facts_of_images(each)).settings["model"]["encoder"]]
            else:
                space = "standardised" if each["spread"] >= UNEVEN_SPREAD else "raw"
            acc = figures["landmarks"][name]["spaces"][space]
            found[name] = (space, acc["kmeans"], acc["landmarks"])
    return found


def landmarks_table(figures: Mapping[str, Any]) -> str:
    """Return what landmarks change over the sets of a kind; the file of figures has every set."""
    gains = landmark_gains(figures)
    body = []
    for kind in ("images", "tables"):
        reference, acc = np.array([gains[name][1:] for name in figures[kind]]).T
        gain = acc - reference
        means = [f"{reference.mean():.3f}", f"{acc.mean():.3f}", f"{gain.mean():+.3f}"]
        body.append([kind, *means, reached(gain > 0), f"{gain.max():+.3f}", f"{gain.min():+.3f}"])
    return markdown_table(["sets", "K-means", "by landmarks", "gain", "higher on", "at best", "at worst"], body)


def numbers_table(figures: Mapping[str, Any]) -> str:
    """Return how often the number of clusters is that of the classes, and by how much it is off."""
    body = []
    for key, name in {"landmarks": "by landmarks", "kmeans": "K-means among features"}.items():
        ratio = np.array([number / each["classes"] for each in figures["numbers"].values() for number in each[key]])
        shares = (ratio == 1, np.abs(ratio - 1) <= FIFTH, ratio < 1, ratio > 1)
        percents = [f"{100 * share.mean():.0f} %" for share in shares]
        body.append([name, *percents, f"{np.exp(np.abs(np.log(ratio)).mean()):.2f}"])
    head = ["number of classes found", "within a fifth", "too few", "too many", "off by a factor of"]
    return markdown_table([f"{len(figures['numbers'])} image sets", *head], body)


def verdicts_table(figures: Mapping[str, Any]) -> str:
    """Return how many draws of each kind of samples have which word, and the highest gain of a draw."""
    body = []
    for kind, named in figures["groups"].items():
        if kind not in ONE_BY_ONE:
            rows = [row for rows in named.values() for row in rows]
            counted = Counter(word for _, word in rows)
            highest = max(min(gains, default=-np.inf) for gains, _ in rows)
            words = [str(counted[word]) for word in ("good", "doubtful", "chance")]
            body.append([f"{kind}: {'; '.join(named)}", str(len(rows)), *words, f"{highest:.1f}"])
    return markdown_table(["samples", "draws", "good", "doubtful", "chance", "highest gain"], body)


def sets_table(figures: Mapping[str, Any]) -> str:
    """Return the gain over each null, and the word, of the tuning sets and the unseen ones."""
    body = []
    for kind in ONE_BY_ONE:
        for name, [(gains, word)] in figures["groups"].get(kind, {}).items():
            said = [f"{gain:.1f}" for gain in gains] + ["-"] * (4 - len(gains))
            body.append([name if kind == "sets" else f"unseen: {name}", *said, word])
    return markdown_table(["set", "gain over a Gaussian", "columns", "axes", "skewed columns", "word"], body)


def tuning_figures() -> dict[str, Any]:
    """Return the figures of the tuning sets, `images` and `tables` by name, and those of verdicts, `groups`."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return {**found, "groups": json.loads(GROUPS.read_text())}


def facts_of_images(figures: Mapping[str, Any]) -> Facts:
    """Return what the rules know of a tuning set of images, dealt to six clients."""
    return Facts(
        "image",
        figures["samples"] // 6,
        total=figures["samples"],
        clusters=figures["classes"],
        pixels=figures["pixels"],
        features=figures["features"],
    )


def images_reached(figures: Mapping[str, Any]) -> list[bool]:
    """Return for each set of images whether the chosen method reaches every null baseline less .02."""
    reached = []
    for name, one in figures["images"].items():
        chosen = rule_for(facts_of_images(one)).settings
        space = SPACES[chosen["model"]["encoder"]]
        acc = one["spaces"][space]["acc"]
        if "landmarks" in chosen["method"]:
            acc = figures["landmarks"][name]["spaces"][space]["landmarks"]
        reached.append(acc >= max(one["spaces"][null]["acc"] for null in NULL) - 0.02)
    return reached


def tables_reached(figures: Mapping[str, Any]) -> list[bool]:
    """Return for each table whether the chosen method reaches K-means on raw columns less .02."""
    reached = []
    for one in figures["tables"].values():
        chosen = rule_for(Facts("vector", one["samples"], spread=one["spread"])).settings["method"]
        space = "standardised" if chosen["standardise"] else "raw"
        reached.append(one["spaces"][space]["acc"] >= one["spaces"]["raw"]["acc"] - 0.02)
    return reached


def reached(sets: Sequence[bool] | np.ndarray) -> str:
    """Return on how many of the sets a rule reaches its baselines, as `9 of 10`."""
    return f"{sum(sets)} of {len(sets)}"


PAGES: Mapping[str, Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "docs/which_method.md": {
        "images": images_count,
        "tables": tables_count,
        "landmarks": landmarks_table,
    },
    "docs/number-of-clusters.md": {"numbers": numbers_table},
    "research/docs/representations.md": {"verdicts": verdicts_table, "sets": sets_table},
}
"""The tables of each page, by their names."""


def page_with_tables(page: str, figures: Mapping[str, Any]) -> str:
    """Return the text of a page whose tables between the marks are made again."""
    text = (ROOT / page).read_text()
    for name, make in PAGES[page].items():
        begin = BEGIN.format(name)
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(END)
        text = f"{before}{begin}\n\n{make(figures)}\n\n{END}{after}"
    return text


def write_pages(figures: Mapping[str, Any]) -> None:
    """Write the tables into their pages."""
    for page in PAGES:
        (ROOT / page).write_text(page_with_tables(page, figures))
