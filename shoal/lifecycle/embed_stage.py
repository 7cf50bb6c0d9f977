"""An embedding as a stage of dvc.yaml: `dvc repro` embeds again where the images have changed."""

from __future__ import annotations

import shlex
from pathlib import Path

from shoal.core.errors import ShoalError
from shoal.data.sets.prepare import own_folder, own_pointer
from shoal.engine.settings import places
from shoal.engine.settings.yaml_text import read_yaml_file
from shoal.lifecycle.dvc_command import dvc, refusal
from shoal.lifecycle.dvc_tracking import DvcError, dvc_root

SCRIPTS = ("shoal/cli/stage.sh", "stage.sh")
"""Where the script lies that runs a stage: in a clone, and in a project of `shoal init`."""


class StageError(ShoalError):
    """An embedding cannot be a stage of dvc.yaml."""


def stage_name(target: str) -> str:
    """Return the name of the stage that embeds a set."""
    return f"embed-{target}"


def is_stage(target: str) -> bool:
    """Return whether dvc.yaml has the stage that embeds a set."""
    path = places.home() / "dvc.yaml"
    if not path.is_file():
        return False
    pipeline = read_yaml_file(path, "DVC pipeline", StageError)
    stages = pipeline.get("stages") if isinstance(pipeline, dict) else None
    return isinstance(stages, dict) and stage_name(target) in stages


def stage_script(images: str) -> str:
    """Return the script that runs a stage of the home's dvc.yaml.

    Raises:
        StageError: the home is no project with a pipeline, or the images are a built-in set, which never changes.
    """
    home = places.home()
    script = next((name for name in SCRIPTS if (home / name).is_file()), None)
    if script is None or not (home / "dvc.yaml").is_file() or dvc_root(home) != home.resolve():
        raise StageError(f"--stage adds to the dvc.yaml of a project, and {home} has none: make one by `shoal init`")
    if not (own_folder(places.store(), images) / "manifest.json").is_file():
        raise StageError(f"--stage is for images of your own, and {images!r} is built in: it never changes")
    return script


def add_stage(images: str, encoder: str, target: str) -> str:
    """Add the stage that embeds a set, or replace it, and record the present vectors as its output.

    Args:
        images: the set of images.
        encoder: as in `model.encoder`.
        target: the set of vectors, which is there.

    Returns:
        The name of the stage.

    Raises:
        StageError: see `stage_script`. DvcError: DVC refused.
    """
    script = stage_script(images)
    store = places.store()
    pointer = own_pointer(store, target)
    if pointer.is_file():
        _dvc("remove", str(pointer))
    command = ("sh", script, "embed", images, "--encoder", encoder, "--name", target)
    paths = ("-d", _relative(own_folder(store, images)), "-o", _relative(own_folder(store, target)))
    _dvc("stage", "add", "--force", "-n", stage_name(target), *paths, shlex.join(command))
    commit_stage(target)
    return stage_name(target)


def commit_stage(target: str) -> None:
    """Record the present vectors as the output of their stage.

    Raises:
        DvcError: DVC refused.
    """
    _dvc("commit", "--force", "--no-relink", stage_name(target))


def _relative(folder: Path) -> str:
    return folder.relative_to(places.home()).as_posix()


def _dvc(*words: str) -> None:
    done = dvc(places.home(), *words)
    if done.returncode:
        raise DvcError(f"DVC refused `dvc {shlex.join(words)}`: {refusal(done)}")
