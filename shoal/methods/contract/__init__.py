"""The contract of a method: its steps, its messages and their forms, predictions, and the run's context."""
