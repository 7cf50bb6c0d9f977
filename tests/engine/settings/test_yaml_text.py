"""YAML from outside: within bounds, plain, and with one sentence where it is not."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import ShoalError
from shoal.engine.settings.run_settings import SettingsError, load_settings
from shoal.engine.settings.yaml_text import MAX_BYTES, MAX_DEPTH, read_yaml, read_yaml_file


def bomb(levels: int) -> str:
    """Nine to the power of `levels` values, in some hundred characters."""
    names = "abcdefghijklmn"[: levels + 1]
    lines = [f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in itertools.pairwise(names)]
    return "\n".join(["a: &a [x, x, x, x, x, x, x, x, x]", *lines]) + "\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (bomb(8), r"mine, line 6, .*more than 100,000 values, with those that aliases stand for"),
        ("a: &a [1, *a]", "line 1, column 11: .*an alias is part of the value that it stands for"),
        ("[" * 100_000, f"nested more than {MAX_DEPTH} levels deep"),
        ("seed: 1\nrounds: 2\nseed: 3", "line 3, column 1: .*'seed' occurs twice here"),
        ("a:\n  1: x", "line 2, column 3: .*the key '1' is not text"),
        ("2020-01-01: x\n[a]: b", "that is a sequence is not text"),
        ("a: 0x" + "f" * 17, "a whole number of more than 64 bits"),
        ("a: " + "9" * 5000, "is not a number"),
        ("a: !!python/name:os.system x", "could not determine a constructor"),
        ("a: !!timestamp 2020-01-01", "could not determine a constructor"),
        ("a: \x07", "mine, line 1: .*the character 0x7"),
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
    text = "m: &m {a: 1, b: 2020-01-01}\nn: {<<: *m, a: 2}\nlist: [1.5, null, yes, ~, .inf]\n"
    found: Any = read_yaml(text, "mine", ShoalError)
    assert found["n"] == {"a": 2, "b": "2020-01-01"}
    assert found["list"] == [1.5, None, True, None, float("inf")]
    assert len(str(read_yaml(bomb(3), "mine", ShoalError))) > 1000


def test_files_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"seed: 1\nrounds: \xff\n")
    with pytest.raises(SettingsError, match=r"settings file .*s\.yaml, line 2: it is not text in UTF-8 \(byte 0xff\)"):
        load_settings(path)
    with pytest.raises(ShoalError, match=r"gone\.yaml cannot be read: No such file"):
        read_yaml_file(tmp_path / "gone.yaml", "", ShoalError)
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ShoalError, match="too long"):
        read_yaml_file(path, "", ShoalError)
