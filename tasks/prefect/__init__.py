"""Units of work as Prefect task runs, and the view of a run in Prefect."""
