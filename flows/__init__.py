"""Prefect flows, deployments and the command line."""

if __name__ != "shoal.flows":
    raise ImportError("this folder is the package shoal.flows: import it by that name")
