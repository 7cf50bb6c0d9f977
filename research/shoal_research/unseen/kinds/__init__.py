"""One file for each kind of data: `make` draws or takes its samples, with their classes."""
