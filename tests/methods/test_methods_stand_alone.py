"""The rooms below `tasks` need torch and the numeric libraries, and nothing that tracks or schedules."""

import ast
import subprocess
import sys

import pytest

from tests.sources import ROOT, sources

BLOCKED = ("prefect", "mlflow", "dvc", "pydantic", "kornia")
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for room in ("methods", "models", "data")
    for path in sources(room)
)


def test_modules_import_without_the_engine_room():
    code = (
        "import sys, importlib\n"
        f"for name in {BLOCKED!r}: sys.modules[name] = None\n"
        f"for name in {MODULES!r}: importlib.import_module(name)\n"
        "import methods.registry\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("room", "known"), [("methods", {"data", "models"}), ("models", set()), ("data", set())])
def test_imports_point_down_the_stairs(room, known):
    rooms = {"data", "models", "methods", "tasks", "flows", "studies"}
    for path in sources(room):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong = {n.split(".")[0] for n in names} & rooms - known - {room}
            assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"
