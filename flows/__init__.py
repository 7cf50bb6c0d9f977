"""Prefect flows; prefect.yaml deploys them. Prefect's environment is set before any of them imports Prefect."""

from shoal.tasks.prefect.environment import set_prefect_defaults

if __name__ != "shoal.flows":
    raise ImportError("this folder is the package shoal.flows: import it by that name")
set_prefect_defaults()
