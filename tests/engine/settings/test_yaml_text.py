"""YAML from outside: within bounds, plain, and with one sentence where it is not."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import ShoalError
from shoal.engine.settings.run_settings import SettingsError, load_settings
from shoal.engine.settings.yaml_text import MAX_BYTES, read_yaml, read_yaml_file


def bomb(levels: int) -> str:
    """Nine to the power of `levels` values, in some hundred characters."""
    names = "abcdefghijklmn"[: levels + 1]
    lines = [f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in itertools.pairwise(names)]
    return "\n".join(["a: &a [x, x, x, x, x, x, x, x, x]", *lines]) + "\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (bomb(8), r"mine, line 2, .*an alias too many, or within another"),
        ("a: &a [x]\nb: [" + "*a, " * 101 + "]", "an alias too many"),
        ("a: &a [1, *a]", "line 1, column 11: .*an alias too many, or within another"),
        ("[" * 10_000, "it is not YAML"),
        ("seed: 1\nrounds: 2\nseed: 3", "line 3, column 1: .*duplicate key"),
        ("a: !!python/name:os.system x", "could not determine a constructor"),
        ("a: \x07", "mine: it is not YAML"),
        ("a: {b", "line 1, column 6"),
        ("a\n" * MAX_BYTES, "too long"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(ShoalError, match=said) as refused:
        read_yaml(text, "mine", ShoalError)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_what_is_read() -> None:
    text = "m: &m {a: 1}\nn: {<<: *m, a: 2}\nlist: [1.5, null, yes, ~, .inf]\n"
    found: Any = read_yaml(text, "mine", ShoalError)
    assert found["n"] == {"a": 2}
    assert found["list"] == [1.5, None, "yes", None, float("inf")]
    as_written = read_yaml("a: 007\n1: on\nlist: [2020-01-01, ~]\n", "mine", ShoalError, "base")
    assert as_written == {"a": "007", "1": "on", "list": ["2020-01-01", "~"]}


def test_files_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"seed: 1\nrounds: \xff\n")
    with pytest.raises(SettingsError, match=r"settings file .*s\.yaml: it is not text in UTF-8 \(byte 17\)"):
        load_settings(path)
    with pytest.raises(ShoalError, match=r"gone\.yaml cannot be read: No such file"):
        read_yaml_file(tmp_path / "gone.yaml", "", ShoalError)
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ShoalError, match="too long"):
        read_yaml_file(path, "", ShoalError)
