"""The rooms below `engine` need torch and the numeric libraries, and nothing that tracks, schedules or validates."""

import subprocess
import sys

from tests.sources import ROOT, module, sources

ABOVE = ("engine", "review", "lifecycle", "tasks", "sweeps", "flows", "studies", "api", "cli")
BLOCKED = ("prefect", "mlflow", "dvc", "pydantic", "kornia", *(f"shoal.{room}" for room in ABOVE))
MODULES = sorted(
    module(path.relative_to(ROOT)) for room in ("core", "data", "models", "methods") for path in sources(room)
)


def test_modules_import_without_the_rooms_above_and_what_those_need():
    assert {"shoal.core.streams", "shoal.data.views.view", "shoal.models.heads", "shoal.methods.registry"} <= set(
        MODULES
    )
    code = (
        "import sys, importlib\n"
        f"for name in {BLOCKED!r}: sys.modules[name] = None\n"
        f"for name in {MODULES!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
