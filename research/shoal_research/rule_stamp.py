"""The rules of a study's claims, written down before the first run of their cells starts.

A rule that is written when the numbers are known decides nothing. The folder of a study's result holds the rules that
were there when the first run of their cells started; a rule that came later is marked on the pages of results.
"""

from __future__ import annotations

import json
from collections.abc import Set
from datetime import UTC, datetime
from typing import Any

from shoal.engine.store.codec import read_json, write_atomic
from shoal.sweeps.files import RESULT
from shoal_research.definition import Study
from shoal_research.result import rule_of, study_folder

FILE = "rules.json"


def stamp_rules(study: Study, scale: str, measured: Set[str]) -> None:
    """Write down the rules of the claims none of whose cells has a run yet.

    Args:
        study, scale: whose claims they are.
        measured: cells that have a run, as `row/column`.
    """
    stamped = read_stamps(study.name, scale)
    known = [each["rule"] for each in stamped]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for claim in study.claims_at(scale):
        rule = rule_of(study, scale, claim)
        cells = {f"{quantity.row}/{quantity.column}" for quantity in claim.quantities()}
        if rule not in known and cells.isdisjoint(measured):
            stamped.append({"rule": rule, "stamped": now})
            known.append(rule)
    path = study_folder(study.name, scale) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(stamped, indent=1, sort_keys=True) + "\n").encode())


def stamped_rules(study: Study, scale: str) -> tuple[dict[str, Any], ...]:
    """Return the rules of today's claims that were written down before their cells were run."""
    known = [each["rule"] for each in read_stamps(study.name, scale)]
    rules = [rule_of(study, scale, claim) for claim in study.claims_at(scale)]
    return tuple(rule for rule in rules if rule in known)


def read_stamps(study: str, scale: str) -> list[dict[str, Any]]:
    """Return the rules that were written down; those of an older result where nothing was."""
    folder = study_folder(study, scale)
    if (folder / FILE).is_file():
        found: list[dict[str, Any]] = read_json(folder / FILE)
        return found
    if (folder / RESULT).is_file():
        return [{"rule": rule, "stamped": ""} for rule in read_json(folder / RESULT).get("rules", ())]
    return []
