"""Units of work of a run: slots, rounds, checkpoints, tracking, reports."""
