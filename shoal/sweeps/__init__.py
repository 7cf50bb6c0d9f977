"""Search over settings: what a search is, which settings are tried next, its trials, and the page of what it found."""
