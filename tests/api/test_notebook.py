"""The notebook of the first hour, executed whole by a real kernel; in git it has no outputs."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from shoal.api.running import settings_of

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "first-hour.ipynb"


def test_it_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")
    assert NOTEBOOK.stat().st_size < 100_000


def test_its_settings_are_settings() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    nodes = list(ast.walk(ast.parse(code)))
    named = [
        node.value for node in nodes if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "settings"
    ]
    calls = [node.keywords for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "shoal.run"]
    found = [ast.literal_eval(node) for node in named]
    found += [{each.arg: ast.literal_eval(each.value) for each in keywords} for keywords in calls if keywords]
    assert [settings_of(each, {}).method.name for each in found] == ["fedsimclr_kmeans", "kfed"]


@pytest.mark.slow
def test_every_cell_runs_and_shows_what_its_text_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()
    shown = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    kinds = {kind for outputs in shown for output in outputs for kind in output.get("data", {})}
    assert {"text/html", "image/png"} <= kinds
    pages = [
        output["data"]["text/html"] for outputs in shown for output in outputs if "text/html" in output.get("data", {})
    ]
    assert any("most certain" in page or "data:image/png;base64" in page for page in pages), "a cluster is explained"
    said = "".join(output.get("text", "") for outputs in shown for output in outputs)
    assert "the most detail on which halves of the clients' samples agree" in said
    assert "Warning" not in said
    assert "18/18" in said, "the bar of the rounds stands at its end"
    assert sorted(path.suffix for path in tmp_path.glob("*.png")) == [".png"]
    assert len([path for path in (tmp_path / "runs").iterdir() if not path.name.startswith(".")]) == 2
