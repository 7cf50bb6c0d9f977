"""The command line, installed as `shoal`."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import re
import signal
import sys
import threading
from typing import Annotated

import typer
from rich.text import Text

from shoal.cli.console import err
from shoal.cli.lazy import LazyGroup, register
from shoal.core.errors import ShoalError, short_text
from shoal.engine.settings.addresses import masked
from shoal.engine.settings.private_home import write_privately
from shoal.engine.store.user_name import name_user

app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated clustering and representation learning without labels, as a tracked pipeline.",
)
register(app)

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""The disk is full, or the place cannot be written to."""
DEBUG = "SHOAL_DEBUG"
LEAD = ("prefect", "mlflow", "dvc", "httpx", "starlette", "uvicorn")
EXTRAS = {
    **dict.fromkeys(LEAD, "lead"),
    "distributed": "dask",
    "h5py": "hdf5",
    "huggingface_hub": "encoders",
    "nvflare": "site",
    "opacus": "privacy",
    "optuna": "search",
    "timm": "encoders",
}
"""The extra of each package without which Shoal trains and judges alone."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"shoal {version('shoal')}")
        raise typer.Exit


@app.callback()
def _main(
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="show the version and exit", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    # Imports make 650,000 objects that stay: looking for unreachable ones after each 700 takes a fifth of their time.
    gc.set_threshold(50_000, 10, 10)
    if debug:
        os.environ[DEBUG] = "1"


def main() -> None:
    """Run the command line; a failure prints one clear message and exits with a non-zero code."""
    # SIGTERM counts as an interruption too; and a shell may have started this process with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(standalone_mode=True)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if os.environ.get(DEBUG) or not report(error):
            raise
        sys.exit(1)


def report(error: Exception) -> bool:
    """Print what a user can do about an error.

    Returns:
        False where the error is a fault of ours, which needs a traceback.
    """
    if isinstance(error, ShoalError):
        text = masked(str(error))
    elif isinstance(error, ModuleNotFoundError) and (package := (error.name or "").split(".")[0]) in EXTRAS:
        text = f"this needs {package}: install Shoal with its extra `{EXTRAS[package]}`"
    elif is_out_of_memory(error):
        text = out_of_memory(error)
    elif isinstance(error, OSError) and error.errno in DISK_ERRORS:
        text = (
            f"{error}; free some space there, or choose a place that you may write to (of runs and data by SHOAL_HOME)"
        )
    else:
        return False
    err.print("[red]error[/]", Text(text), soft_wrap=True)
    return True


def entry() -> None:
    """Run the `shoal` command, then leave at once."""
    write_privately()
    name_user()
    try:
        main()
        code = 0
    except SystemExit as end:
        if isinstance(end.code, int):
            code = end.code
        else:
            code = int(end.code is not None)
    leave(code)


_WORDS = re.compile(
    r"(can't|cannot|could not|unable to|failed to) (allocate|map segment|start new thread)|not enough memory|"
    r"out of memory|bad_alloc|malloc of size",
    re.IGNORECASE,
)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error says that there was no memory for something; every library has its own words for it."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError | ImportError | OSError) and bool(_WORDS.search(str(error)))


def out_of_memory(error: Exception) -> str:
    """Return the sentence to show: what was refused, and what to do."""
    return (
        f"out of memory: {short_text(error)}; free memory, or work on fewer samples (data.limit), smaller images "
        "(--size) or fewer workers (workers.slots)"
    )


def leave(code: int) -> None:
    """End the process without taking it apart, which takes seconds after torch and Prefect were imported.

    As at an ordinary end, threads that are still at work are waited for, and what was registered for the end is done;
    but not where Prefect was lost: its threads would knock at the lost server's door for minutes.
    """
    environment = sys.modules.get("shoal.tasks.prefect.environment")  # where it was never imported, nothing was lost
    if environment is None or not environment.server_lost.is_set():
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    slots = sys.modules.get("shoal.engine.workers.worker_processes")
    if slots is not None:
        slots.kill_fork_server()
    with contextlib.suppress(OSError, ValueError):  # a pipe that is closed
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    entry()
