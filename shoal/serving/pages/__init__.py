"""The servers of Prefect and MLflow behind a guard; they need nothing else of Shoal."""
