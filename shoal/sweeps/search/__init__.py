"""Search over settings: its definition, the settings that are tried next, its trials, and the page of its result."""
