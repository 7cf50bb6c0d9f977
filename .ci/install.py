"""Install Shoal into the environment of the Python that runs this, stage by stage: what `make setup` does.

Most of the 7 GB of a Linux installation are CUDA's libraries, which torch brings along. A machine without a GPU has no
use for them, and there is a build of torch without them; but the public index does not offer it, and an index of one's
own may. So it is looked for with the indexes that pip is configured with. It is taken together with the same build of
torchvision or not at all: torch's CPU build beside the ordinary torchvision fails at import.

Nothing but the standard library is needed here.
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
PAIR = ("torch", "torchvision")
PRODUCT = "lead,encoders,fonts,hdf5,search,site,timm"
"""The extras of `make setup`: what the README's commands need."""
TOOLS = "lead,dev"
"""The extra of `make test` and `make check`, which also holds what only some people use: Dask, privacy, databases."""
SIGNS = ("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia", "/dev/dxg")
"""Where Linux shows that there is an NVIDIA GPU (the last under Windows)."""
HOW = (
    "name an index or a folder that has its CPU build, together with torchvision's, in PIP_EXTRA_INDEX_URL or "
    "PIP_FIND_LINKS, and run `make clean setup TORCH=cpu`"
)


class Plan(NamedTuple):
    """What is installed before everything else, what pip is held to besides the constraints, and why."""

    first: tuple[str, ...]
    pinned: tuple[str, ...]
    why: str


def pins(constraints: Path) -> dict[str, str]:
    """The pinned versions of torch and torchvision."""
    found = dict(re.findall(r"^(torch|torchvision)==([^\s+;]+)", constraints.read_text(), re.MULTILINE))
    return {name: found[name] for name in PAIR}


def gpu_seen(exists: Callable[[str], bool] = lambda path: Path(path).exists()) -> bool:
    """Whether an NVIDIA GPU, or its driver, is on this machine."""
    return shutil.which("nvidia-smi") is not None or any(map(exists, SIGNS))


def offered(requirement: str) -> bool:
    """Whether pip, as it is configured, finds a package of exactly this version."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed"]
    return subprocess.run([*command, requirement], capture_output=True, check=False).returncode == 0


def choose(wanted: str, gpu: bool, versions: dict[str, str], find: Callable[[str], bool] = offered) -> Plan:
    """Which build of torch this machine gets.

    Args:
        wanted: auto: the CPU build where there is no GPU and an index offers it; cpu; or cuda: the ordinary build.
        gpu: whether there is a GPU.
        versions: of torch and torchvision.
        find: says whether a requirement can be met.

    Raises:
        SystemExit: the CPU build is wanted, and no index offers it.
    """
    if wanted == "cuda" or (wanted == "auto" and gpu):
        return Plan(
            (), (), "torch: the ordinary build" + (", for the GPU of this machine" if gpu else ", as asked for")
        )
    pair = tuple(f"{name}=={versions[name]}+cpu" for name in PAIR)
    have = [find(requirement) for requirement in pair]
    if all(have):
        return Plan(pair, (), f"torch: the CPU build, without CUDA's libraries ({' and '.join(pair)})")
    if wanted == "cpu":
        missing = [requirement for requirement, there in zip(pair, have, strict=True) if not there]
        raise SystemExit(f"TORCH=cpu: no index that pip knows offers {' and '.join(missing)}: {HOW}")
    why = (
        f"torch: no GPU is seen here, but the ordinary build brings some 5 GB of CUDA's libraries. To spare them, {HOW}"
    )
    # A +cpu version counts as the newer one, and without its other half pip would take it.
    pinned = tuple(f"{name}==={versions[name]}" for name in PAIR) if any(have) else ()
    return Plan((), pinned, why)


def say(stage: str) -> None:
    """A line on what happens now."""
    print(f"==> {stage}", flush=True)


def pip(*arguments: str) -> None:
    """Have pip install something, with its own progress.

    Raises:
        SystemExit: it could not.
    """
    done = subprocess.run([sys.executable, "-m", "pip", "install", *arguments], check=False)
    if done.returncode:
        raise SystemExit(f"pip could not install {arguments[-1]}: the reason is above; `make setup` goes on from here")


def main(arguments: Sequence[str] | None = None) -> None:
    """Install everything, a line a stage."""
    parser = argparse.ArgumentParser(description="Install Shoal and what it needs.")
    parser.add_argument("--torch", choices=("auto", "cpu", "cuda"), default="auto", help="which build of torch")
    parser.add_argument("--tools", action="store_true", help="add the tools of developers to an installation")
    given = parser.parse_args(arguments)
    wanted = given.torch
    if sys.version_info < (3, 11):  # noqa: UP036 (the user may have any version)
        raise SystemExit(f"Python {platform.python_version()} is too old: run `make clean setup PYTHON=python3.11`")
    pins_file = Path(sys.prefix) / "torch-constraints.txt"
    if given.tools:
        say("the tools of developers: some 100 packages")
        pip("--quiet", "-c", str(CONSTRAINTS), "-c", str(pins_file), "-e", f"{ROOT}[{TOOLS}]")
        return
    say(f"1/4 pip itself, in {sys.prefix}")
    pip("--quiet", "--upgrade", "pip")
    say("2/4 which build of torch")
    if platform.system() == "Linux":
        plan = choose(wanted, gpu_seen(), pins(CONSTRAINTS))
    else:
        plan = Plan((), (), "torch: the ordinary build, which has no CUDA here")
    print(plan.why, flush=True)
    if plan.first:
        pip("-c", str(CONSTRAINTS), *plan.first)
    pins_file.write_text("\n".join(plan.pinned) + "\n")
    say("3/4 Shoal and what it needs: some 240 packages, a few minutes")
    pip("-c", str(CONSTRAINTS), "-c", str(pins_file), "-e", f"{ROOT}[{PRODUCT}]")
    say("4/4 does it start?")
    subprocess.run([str(Path(sys.executable).with_name("shoal")), "--version"], check=True)


if __name__ == "__main__":
    main()
