"""`shoal work`: this machine carries out clients' work for runs on other machines."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from cli.console import err


def work(
    slots: Annotated[
        str, typer.Option(help="worker processes; auto: one for each CPU core, or --per-gpu for each GPU")
    ] = "auto",
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="where they compute; auto: GPUs where there are any")
    ] = "auto",
    per_gpu: Annotated[int, typer.Option(min=1, help="worker processes that share one GPU")] = 1,
) -> None:
    """Train clients for runs with workers.runner=prefect, at the Prefect server of PREFECT_API_URL, until Ctrl-C.

    Runs see the host as long as this command runs. CUDA_VISIBLE_DEVICES says which GPUs it has.
    """
    from engine.worker_processes import warm

    warm()
    from engine.hardware import resolve_device, resolve_slots
    from engine.settings import SettingsError
    from engine.settings_sections import WorkersSection
    from tasks.serving import serve

    if slots != "auto" and not slots.isdecimal():
        raise SettingsError(f"--slots: given {slots!r}; a number or auto is needed")
    where = resolve_device(WorkersSection(device=device, slots="auto"))
    serve(resolve_slots(slots, where, per_gpu), where, lambda line: err.print(line, highlight=False, soft_wrap=True))
