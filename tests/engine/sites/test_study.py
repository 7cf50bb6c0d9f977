"""Keys and certificates of a study and its sites."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from shoal.core.errors import ShoalError
from shoal.engine.sites.study import Study, approve, keys_of, make_study, open_study, package, request

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return make_study(tmp_path_factory.mktemp("lead"), "lungs", "localhost", 21990)


def test_a_site_joins_with_a_key_that_stays_there(study: Study, tmp_path: Path) -> None:
    asked = request(tmp_path, "lungs", "north-1")
    renamed = asked.rename(tmp_path / "from a mail (1).zip")
    name, signed = approve(study, renamed)
    assert (name, study.sites) == ("north-1", ["north-1"])
    with pytest.raises(
        ShoalError, match=r"signed.zip does not belong to .* this fingerprint: ask the lead \(.*[fF]ingerprint"
    ):
        package(tmp_path, signed, "SHA256:" + ":".join(["00"] * 32))
    package(tmp_path, signed, study.fingerprint)
    place = keys_of(tmp_path)
    assert {path.name for path in place.iterdir()} == {"client.crt", "client.key", "rootCA.pem", "fed_client.json"}
    key = place / "client.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    for path in (renamed, *study.folder.rglob("*")):
        assert path.is_dir() or key.read_bytes() not in path.read_bytes(), path
    with pytest.raises(ShoalError, match="north-1 is approved already"):
        approve(study, renamed)


def test_what_is_wrong_is_refused_and_leaves_nothing(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(study.folder.parent))
    assert open_study() == study
    with pytest.raises(ShoalError, match="led from here already"):
        make_study(study.folder.parent, "lungs", "localhost", 21990)
    with pytest.raises(ShoalError, match="Invalid project name"):
        make_study(tmp_path, "a b/", "localhost", 21990)
    assert not (tmp_path / "sites").exists()
    (tmp_path / "junk.zip").write_bytes(b"junk")
    with pytest.raises(ShoalError, match="not a zip file"):
        approve(study, tmp_path / "junk.zip")
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    with pytest.raises(ShoalError, match="no study is led from here"):
        open_study()
    with pytest.raises(ShoalError, match="no site of a study yet"):
        keys_of(tmp_path)
