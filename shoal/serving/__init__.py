"""`shoal serve`: the servers of Prefect and MLflow, a worker and the deployments, until Ctrl-C."""
