"""The tables of docs/which_method.md and docs/number-of-clusters.md, made from the kept figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.methods.auto import CLIENT_BOUND, ENCODER, LAYERS, PIXELS_AHEAD, UNEVEN_SPREAD, Facts, rule_for
from shoal.models.encoders import PIXELS
from shoal_research.claims import interval_of
from shoal_research.definition import HOME
from shoal_research.kept import RESULTS, MeasuredCells, load_kept
from shoal_research.words import between, interval_words, markdown_table

BEGIN = "<!-- made by python -m shoal_research.label_free: {} -->"
END = "<!-- end -->"
SPACES = {ENCODER: "encoder", LAYERS: "encoder", PIXELS: "pixels"}
"""The names of spaces among the figures, by the encoder that images are clustered by."""
ROOT = HOME.parents[1]
"""Above the pages."""
TUNING = RESULTS / "label_free.json"
GROUPS = RESULTS / "label_free_groups.json"
OFFSETS = RESULTS / "label_free_sites.json"
RECORDED_AGAIN = RESULTS / "recorded_again.json"
COUNTS = RESULTS / "label_free_counts.json"
LIGHT = RESULTS / "label_free_light.json"
"""Figures of the tuning sets: spaces and numbers, verdicts, offsets of sites, methods before they sent less, kinds of
counts, and light at sites."""
LEAST_BOUND = 0.03
"""The lowest bound that was tried for how much clusters tell of the client."""
NULLS = {"images": ("pixels", "encoder", "untrained"), "tables": ("raw",)}
"""The spaces of the null baselines."""
TOLERANCE = 0.02
"""A rule may be so far below its best null baseline."""
ENOUGH = 0.95
"""Share of the ACC without effects of sites that is to be kept with them."""
FALL = 0.03
"""So much lower a set's ACC is named."""
ONE_BY_ONE = ("sets", "unseen")
RUNS = "unseen runs"
"""Kinds of the verdicts' figures that are sets, and not draws; the last are of whole runs."""
AHEAD = (0.0, 0.02, 0.05, 0.1)
"""By how much neighbours must agree more on clusters of another space."""
FIFTH = 0.2
"""A number of clusters is close if it is off by at most this share of the classes."""


def images_count(figures: Mapping[str, Any]) -> str:
    """Return the rule for images, and on how many of the sets it holds."""
    return (
        f"Pixels are chosen if their agreement is higher by more than {PIXELS_AHEAD:.2f}: "
        f"{count_of(reached(figures, 'images'))} image sets are at or above every null baseline less .02."
    )


def tables_count(figures: Mapping[str, Any]) -> str:
    """Return the rule for tables, and on how many of the sets it holds."""
    return (
        f"Columns are standardised from a spread of {UNEVEN_SPREAD:g} on: "
        f"{count_of(reached(figures, 'tables'))} tables are at or above K-means on raw columns less .02."
    )


def landmarks_table(figures: Mapping[str, Any]) -> str:
    """Return what landmarks change over the sets of a kind; the file of figures has every set."""
    body = []
    for kind in ("images", "tables"):
        spaces = [figures["landmarks"][name]["spaces"][chosen_space(one)] for name, one in figures[kind].items()]
        reference, acc = np.array([(space["kmeans"], space["landmarks"]) for space in spaces]).T
        gain = acc - reference
        means = [f"{reference.mean():.3f}", f"{acc.mean():.3f}", f"{gain.mean():+.3f}"]
        body.append([kind, *means, count_of(gain > 0), f"{gain.max():+.3f}", f"{gain.min():+.3f}"])
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
        if kind not in (*ONE_BY_ONE, RUNS):
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


def runs_table(figures: Mapping[str, Any]) -> str:
    """Return the word of runs on the unseen sets without labels, and what it rests on."""
    runs = figures["groups"][RUNS]
    body = [[name, *(f"{number:.2f}" for number in numbers), word] for name, [(numbers, word)] in runs.items()]
    return markdown_table(["unseen set", "gain", "neighbours agree", "those of K-means", "word"], body)


def offsets_table(figures: Mapping[str, Any]) -> str:
    """Return the ACC of each set of images where offsets of sites are ignored, and where they are estimated."""
    sets = figures["sites"]["images"]
    cases = ("even", "dirichlet", "even, offsets", "dirichlet, offsets", "even, light")
    body = [[name, *(" ".join(f"{acc:.3f}" for acc in one[case]) for case in cases)] for name, one in sets.items()]
    acc = np.array([[one[case] for case in cases] for one in sets.values()])
    body.append(["mean", *(f"{ignored:.3f} {estimated:.3f}" for ignored, estimated in acc.mean(0))])
    plain = acc[:, 0, 0]
    held = [count_of(acc[:, case, 1] >= ENOUGH * plain) for case in (2, 4)]
    body.append([f"{ENOUGH} of even, ignored", "", "", held[0], "", held[1]])
    return markdown_table(["ACC, ignored and estimated", *cases], body)


def offsets_over_sets(figures: Mapping[str, Any]) -> str:
    """Return what estimating offsets of sites changes over all sets, with the interval over these."""
    body = []
    for kind in ("tables", "images"):
        sets = figures["sites"][kind].values()
        for case in next(iter(sets)):
            ignored, estimated = np.array([one[case] for one in sets]).T
            plain = np.array([one["even"][0] for one in sets])
            held = count_of(estimated >= ENOUGH * plain) if case in ("even, offsets", "even, light") else ""
            body.append([f"{len(sets)} {kind}, {case}", *changed(ignored, estimated), held])
    head = ["sets", "ignored", "estimated", "difference", "lowest", f"{ENOUGH} of even, ignored"]
    return markdown_table(head, body)


def changed(before: np.ndarray, after: np.ndarray) -> list[str]:
    """Return two means over sets, each (n,), of their difference the 95 % interval, and the lowest difference."""
    difference = after - before
    interval = interval_of(difference.tolist())
    assert interval is not None
    return [f"{before.mean():.3f}", f"{after.mean():.3f}", interval_words(interval), f"{difference.min():+.3f}"]


def recorded_again(figures: Mapping[str, Any]) -> str:
    """Return the ACC of methods before and after they sent less, with intervals over sets, and who fell by `FALL`."""
    body = []
    for case, by_set in figures["recorded again"].items():
        before, after = np.array(list(by_set.values())).T
        fell = [f"{name} {old} {new}" for name, (old, new) in by_set.items() if old - new >= FALL]
        body.append([f"{case} ({len(by_set)})", *changed(before, after), ", ".join(fell)])
    return markdown_table(["method, sets", "abc9874d", "now", "difference", "lowest", f"lower by {FALL}"], body)


def counts(figures: Mapping[str, Any]) -> str:
    """Return the ACC of kinds of counts by space, each the mean of all draws and dealings."""
    by_kind: dict[str, list[Mapping[str, float]]] = {}
    for case, one in figures["counts"].items():
        by_kind.setdefault(case.rsplit(", ", 2)[0], []).append(one)
    ways = ("columns as they are", "by the root of their deviation", "standardised", "16 components", "64 components")
    spaces = ("no counts", *ways)
    body = [[kind, *(f"{np.mean([one[space] for one in of]):.3f}" for space in spaces)] for kind, of in by_kind.items()]
    return markdown_table(["ACC", *spaces], body)


def light(figures: Mapping[str, Any]) -> str:
    """Return what other light at sites does to images, as they are and evened, and which are evened without effects."""
    body = []
    for name, one in figures["light"].items():
        [lit] = one["light"]
        plain = [told for dealing in ("even", "dirichlet") for told in one[dealing]]
        if "acc" in lit or any(map(is_evened, plain)):
            scores = [f"{lit[key]:.3f}" if key in lit else "" for key in ("plain_acc", "acc", "light_acc")]
            told = [f"{lit[key]:.2f}" for key in ("by", "light_by")]
            body.append(
                [name, *told, "yes" if is_evened(lit) else "no", *scores, count_of(list(map(is_evened, plain)))]
            )
    head = ["tells of the client", "evened", "taken", "ACC without", "as is", "evened", "taken without"]
    return markdown_table([f"{len(figures['light'])} sets, other light", *head], body)


def is_evened(told: Mapping[str, float]) -> bool:
    """Return whether images are clustered in even light, by what clusters tell of the client."""
    facts = Facts(
        "image",
        100,
        by_client=told["by"],
        light_by_client=told["light_by"] if told["by"] >= CLIENT_BOUND else None,
        light_groups=told.get("light_gain"),
    )
    return facts.other_light


def own_kinds(figures: Mapping[str, Any]) -> str:
    """Return mean ACC of kinds that chose nothing, before the rules and after, and the intervals over kinds."""
    records = figures["sites"]["own kinds"]
    apart = {one["kind"] for one in records if one["differ"]}
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in records:
        case = one["dealing"] + ", sites differ" * one["differ"] + ", counts or windows" * (one["kind"] not in apart)
        groups.setdefault((case, one["kind"]), []).append(one)
    acc = {where: np.array([(one["before"]["acc"], one["after"]["acc"]) for one in of]) for where, of in groups.items()}
    body = []
    for case in dict.fromkeys(case for case, _ in acc):
        kinds = {kind: values for (where, kind), values in acc.items() if where == case}
        for kind, values in kinds.items():
            lowest = (values[:, 1] - values[:, 0]).min()
            body.append([f"{kind}, {case}", *(f"{mean:.3f}" for mean in values.mean(0)), "", f"{lowest:+.3f}"])
        body.append([f"{len(kinds)} kinds, {case}", *changed(*np.array([v.mean(0) for v in kinds.values()]).T)])
    return markdown_table(["kind, sites", "before", "after", "difference", "lowest"], body)


def between_spaces(figures: Mapping[str, Any]) -> str:
    """Return mean ACC of images in each space, of the best, and of that whose clusters neighbours agree on most."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for one in figures["between spaces"]:
        groups.setdefault(one["set"] if one["set"] not in figures["images"] else "tuning sets", []).append(one)
    spaces = [name for name in next(iter(groups.values()))[0] if name not in ("set", "seed")]
    body = []
    for name, records in groups.items():
        acc, agreement = np.array([[one[space] for space in spaces] for one in records]).transpose(2, 0, 1)
        ahead = agreement[:, 1:].max(1) - agreement[:, 0]
        other = acc[np.arange(len(acc)), 1 + agreement[:, 1:].argmax(1)]
        taken = [np.where(ahead > bound, other, acc[:, 0]) for bound in AHEAD]
        means = [*acc.mean(0), acc.max(1).mean(), *(rule.mean() for rule in taken)]
        lowest = min((rule - acc[:, 0]).min() for rule in taken)
        body.append([f"{len(records)} {name}", *(f"{mean:.3f}" for mean in means), f"{lowest:+.3f}"])
    rules = [f"agreement, ahead by {bound:g}" for bound in AHEAD]
    return markdown_table(["mean ACC", *spaces, "the best of these", *rules, "lowest change"], body)


def table_numbers(figures: Mapping[str, Any]) -> str:
    """Return how often offsets of sites of tables were taken off, and how far the number is off before and after."""
    sets = figures["sites"]["table numbers"]
    body = []
    for case in [case for case in next(iter(sets.values())) if case != "classes"]:
        taken = [(one["classes"], *one[case]) for one in sets.values() if one[case]]
        row = [case, count_of([bool(one[case]) for one in sets.values()]), "", "", "", ""]
        if taken:
            classes, before, after = np.array(taken).T
            exact = [count_of(number == classes) for number in (before, after)]
            factors = [np.exp(np.abs(np.log(number / classes)).mean()) for number in (before, after)]
            row[2:] = [*exact, *(f"{factor:.2f}" for factor in factors)]
        body.append(row)
    head = ["taken off on", "number of classes, as is", "less offsets", "off by a factor of, as is", "less offsets"]
    return markdown_table(["tables, six sites", *head], body)


def own_tables(figures: Mapping[str, Any]) -> str:
    """Return numbers of clusters and mean scores of tables that chose nothing, before offsets are taken off and after.

    A run that ends with "no clusters" has a score of 0.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for one in figures["sites"]["own tables"]:
        case = (one["kind"], str(one["classes"]), f"{one['dealing']}, {one['deviations']} deviations")
        groups.setdefault(case, []).append(one)
    body = []
    for names, records in groups.items():
        ways = [[one[way] for one in records] for way in ("before", "after")]
        numbers = [", ".join(str(run.get("number", "none")) for run in runs) for runs in ways]
        means = [f"{np.mean([run.get(s, 0) for run in runs]):.3f}" for s in ("acc", "ari") for runs in ways]
        body.append([*names, *numbers, *means])
    head = ["kinds", "sites", "numbers, as is", "less offsets", "ACC, as is", "less", "ARI, as is", "less"]
    return markdown_table(["tables", *head], body)


def unseen_over_sets(figures: Mapping[str, Any]) -> str:
    """Return how far runs on unseen sets are ahead of null baselines and of the first kept runs, with intervals."""
    cells: MeasuredCells = figures["unseen"]
    newest = {(cell.row, cell.column): cell.metrics for cell in cells.newest().values()}
    first = {(cell.row, cell.column): cell.metrics for cell in cells.cells if cell.commit == cells.measured[0].commit}
    rows = list(dict.fromkeys(row for row, _ in newest))
    columns = list(dict.fromkeys(column for _, column in newest))
    body = []
    for name, of, metric in (
        ("the highest null baseline", newest, "best_null"),
        ("the highest mean of 15 draws", newest, "best_null_mean"),
        ("the highest that the run shows", newest, "own_null"),
        (f"the runs of {cells.measured[0].date}", first, "acc"),
    ):
        ahead = np.array([[newest[r, c]["acc"] - of[r, c][metric] for c in columns] for r in rows])
        words = [
            interval_words(interval)
            for interval in map(interval_of, [*ahead.T.tolist(), ahead.mean(1).tolist()])
            if interval
        ]
        body.append([name, *words, f"{ahead.min():+.3f}"])
    return markdown_table(["ACC less that of", *columns, "mean of the three", "lowest run"], body)


def tuning_figures() -> dict[str, Any]:
    """Return the figures of the tuning sets, of verdicts (`groups`), of offsets (`sites`) and of unseen sets."""
    found: dict[str, Any] = json.loads(TUNING.read_text())
    more = {"groups": json.loads(GROUPS.read_text()), "sites": json.loads(OFFSETS.read_text())}
    more |= {"recorded again": json.loads(RECORDED_AGAIN.read_text()), "counts": json.loads(COUNTS.read_text())}
    more["light"] = json.loads(LIGHT.read_text())
    return {**found, **more, "unseen": load_kept("unseen", "cpu")}


def settings_for(one: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings that the rules choose for a tuning set, images dealt to six clients."""
    if "spread" in one:
        return rule_for(Facts("vector", one["samples"], spread=one["spread"])).settings
    facts = Facts(
        "image",
        one["samples"] // 6,
        total=one["samples"],
        clusters=one["classes"],
        pixels=one["pixels"],
        features=one["features"],
    )
    return rule_for(facts).settings


def chosen_space(one: Mapping[str, Any]) -> str:
    """Return the name of the space that a tuning set is clustered in."""
    settings = settings_for(one)
    if "spread" not in one:
        return SPACES[settings["model"]["encoder"]]
    return ("raw", "standardised")[settings["method"]["standardise"]]


def reached(figures: Mapping[str, Any], kind: str) -> list[bool]:
    """Return for each set of a kind whether the chosen method reaches every null baseline less `TOLERANCE`."""
    results = []
    for name, one in figures[kind].items():
        space = chosen_space(one)
        acc = one["spaces"][space]["acc"]
        if kind == "images" and "landmarks" in settings_for(one)["method"]:
            acc = figures["landmarks"][name]["spaces"][space]["landmarks"]
        results.append(acc >= max(one["spaces"][null]["acc"] for null in NULLS[kind]) - TOLERANCE)
    return results


def count_of(sets: Sequence[bool] | np.ndarray) -> str:
    """Return on how many of the sets something holds, as `9 of 10`."""
    return f"{sum(sets)} of {len(sets)}"


PAGES: Mapping[str, Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "docs/which_method.md": {
        "images": images_count,
        "tables": tables_count,
        "landmarks": landmarks_table,
    },
    "docs/number-of-clusters.md": {"numbers": numbers_table},
    "research/docs/results/unseen.md": {"unseen over sets": unseen_over_sets},
    "research/docs/representations.md": {
        "verdicts": verdicts_table,
        "sets": sets_table,
        "unseen runs": runs_table,
        "offsets": offsets_table,
        "offsets over sets": offsets_over_sets,
        "recorded again": recorded_again,
        "counts": counts,
        "light": light,
        "own kinds": own_kinds,
        "between spaces": between_spaces,
        "table numbers": table_numbers,
        "own tables": own_tables,
    },
}
"""The tables of each page, by their names."""


def page_with_tables(page: str, figures: Mapping[str, Any]) -> str:
    """Return the text of a page whose tables between the marks are made again."""
    text = (ROOT / page).read_text()
    for name, make in PAGES[page].items():
        text = between(text, BEGIN.format(name), END, make(figures))
    return text


def write_pages(figures: Mapping[str, Any]) -> None:
    """Write the tables into their pages."""
    for page in PAGES:
        (ROOT / page).write_text(page_with_tables(page, figures))
