"""How a unit of work becomes a Prefect task run, and what Prefect shows of a run."""
