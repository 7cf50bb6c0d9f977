"""Prefect tasks, one a file; `tasks/prefect` submits them and shows them."""

if __name__ != "shoal.tasks":
    raise ImportError("this folder is the package shoal.tasks: import it by that name")
