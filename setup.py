"""Refuse to build from a tree without the links in shoal/; pyproject.toml has everything else."""

from pathlib import Path

from setuptools import setup

ROOMS = ("data", "flows", "models", "tasks")
missing = [room for room in ROOMS if not Path(__file__).parent.joinpath("shoal", room, "__init__.py").is_file()]
if missing:
    raise SystemExit(
        f"shoal/{missing[0]} must be a link to ../{missing[0]}, and this copy has none: clone with "
        "`git -c core.symlinks=true clone`, or unpack the archive with a program that keeps links, such as tar"
    )
setup()
