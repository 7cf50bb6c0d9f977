"""Records of the machine that a run computes on, for its lineage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """The hardware and software of a computer, without its name.

    Args:
        cores: number of CPU cores that the process may use.
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
class RunHardware:
    """The device and precision that a run chose when it began; a resumed run keeps them.

    Args:
        device: cpu or cuda.
        precision: fp32, tf32 or bf16.
    """

    device: str
    precision: str
