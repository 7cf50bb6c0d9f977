"""One run, from its settings to its reviewed result."""
