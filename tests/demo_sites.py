"""`make demo-sites`: a lead and three sites on this machine, each with a home, a key and a third of the digits.

python -m tests.demo_sites [FOLDER]
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import shoal
from shoal.core.errors import ShoalError
from shoal.engine.settings import places
from shoal.engine.sites.own_rules import OwnRules
from shoal.engine.store.run_folder import RunFolder
from tests.network import LEAD, Network, network
from tests.sites import add_own_set, joined_set, name_of
from tests.sources import ROOT

NAMES = ("east", "north", "south")
SAMPLES = 599
SETTINGS = {
    "data": {"name": name_of("vector")},
    "method": {"name": "fedkmeans", "min_points": 5},
    "partition": {"kind": "by_column"},
    "tracking": {"mlflow": False},
}
TRIES = 5


def flags(**sections: object) -> list[str]:
    """The words that give `shoal run` the settings of the demo, and others."""
    words = []
    for section, values in {**SETTINGS, **sections}.items():
        for key, value in dict(values).items():  # type: ignore[call-overload]
            words += ["--set", f"{section}.{key}={str(value).lower() if isinstance(value, bool) else value}"]
    return words


def run_over_sites(made: Network) -> RunFolder:
    """Run at the lead; a run that is killed is resumed."""
    words = flags(privacy={"sums": "masked"}, workers={"runner": "sites"})
    for _ in range(TRIES):
        done = made.shoal(LEAD, "run", *words, check=False)
        runs = sorted((made.home(LEAD) / "runs").glob("*/settings.yaml"))
        if not done.returncode:
            return RunFolder(runs[-1].parent)
        if "refuses" in done.stderr:
            break
        print(f"the run stopped and goes on: {done.stderr.strip()[-300:]}", flush=True)
        if runs:
            words = ["--resume", "latest"]
    raise ShoalError(f"the run did not end: {done.stdout}{done.stderr}")


def run_here(home: Path, **sections: object) -> RunFolder:
    """Run with the samples of a home alone, in this process."""
    os.environ["SHOAL_HOME"] = str(home)
    run = shoal.run(SETTINGS, progress=False, **sections)
    return RunFolder(run.path)


def acc(run: RunFolder) -> str:
    """The ACC of a finished run, or its bounds where sites withhold small counts."""
    last = run.table("rounds").iloc[-1]
    if "acc" in last:
        return f"{last['acc']:.3f}"
    return f"{last['acc_at_least']:.3f} to {last['acc_at_most']:.3f}"


def main() -> None:
    """Show it."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "results" / "demo-sites").resolve()
    began = time.monotonic()
    print(f"a lead and the sites {', '.join(NAMES)} get homes and keys in {folder}", flush=True)
    with network(folder, NAMES) as made:
        sets = [
            add_own_set(made.home(name) / "data" / "store", "vector", SAMPLES, number)
            for number, name in enumerate(NAMES)
        ]
        made.allow(data=[name_of("vector")], methods=["fedkmeans"])
        for name in (LEAD, *NAMES):
            made.start(name)
        print("fedkmeans over the sites, with masked sums", flush=True)
        run = run_over_sites(made)
    together = folder / "together"
    os.environ["SHOAL_HOME"] = str(together)
    joined_set(places.store(), sets)
    local = run_here(together, privacy={"sums": "masked"})
    seen = made.shoal(together.name, "explain", local.name, "--server-sees").stdout
    same = run.status().weights_sha256 == local.status().weights_sha256
    print(f"ACC over the sites       {acc(run)}")
    for name in NAMES:
        print(f"ACC of {name:<6} alone      {acc(run_here(made.home(name)))}")
    print(f"bits of a run that has all samples in one place: {'the same' if same else 'OTHERS'}")
    for name in NAMES:
        lines = list(OwnRules(made.home(name) / "site").log.entries())
        print(f"left {name:<6} {len(lines)} messages, {sum(line['bytes'] for line in lines):,} bytes: shoal site log")
    print(seen.rstrip())
    print(f"{time.monotonic() - began:.0f} seconds; homes, logs and reports: {folder}")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
