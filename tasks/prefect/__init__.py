"""How a unit of work is dispatched as a Prefect task."""
