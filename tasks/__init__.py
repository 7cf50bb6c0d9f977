"""Units of work of a run: slots, rounds, checkpoints, tracking, reports."""

if __name__ != "shoal.tasks":
    raise ImportError("this folder is the package shoal.tasks: import it by that name")
