"""The machine that a run computes on, as its lineage records it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """A computer without its name.

    Args:
        cores: CPU cores that the process may use.
        machine: the architecture, such as x86_64.
        system: the operating system and its release.
        gpus: the name of each GPU.
        python, torch: their versions.
    """

    cores: int
    machine: str
    system: str
    gpus: tuple[str, ...]
    python: str
    torch: str


@dataclass(frozen=True)
class Resolved:
    """What `auto` settings came to when a run was started; a resumed run keeps it.

    Args:
        device: cpu or cuda.
        precision: fp32, tf32 or bf16.
    """

    device: str
    precision: str
