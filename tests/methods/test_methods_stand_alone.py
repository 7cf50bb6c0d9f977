"""The rooms below `engine` need torch and the numeric libraries, and nothing that tracks, schedules or validates."""

import subprocess
import sys

from tests.sources import ROOT, sources

BLOCKED = ("prefect", "mlflow", "dvc", "pydantic", "kornia", "engine", "review", "tasks", "flows", "studies", "cli")
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for room in ("core", "data", "models", "methods")
    for path in sources(room)
)


def test_modules_import_without_the_rooms_above_and_what_those_need():
    assert {"core.streams", "data.view", "models.heads", "methods.registry"} <= set(MODULES)
    code = (
        "import sys, importlib\n"
        f"for name in {BLOCKED!r}: sys.modules[name] = None\n"
        f"for name in {MODULES!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
