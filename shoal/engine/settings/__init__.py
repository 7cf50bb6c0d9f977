"""The settings of a run: their schema, and what `auto` means on this machine."""
