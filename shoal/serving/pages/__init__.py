"""The servers of Prefect and MLflow behind a guard; these modules use nothing else of Shoal."""
