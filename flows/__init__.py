"""Prefect flows; prefect.yaml deploys them."""

if __name__ != "shoal.flows":
    raise ImportError("this folder is the package shoal.flows: import it by that name")
