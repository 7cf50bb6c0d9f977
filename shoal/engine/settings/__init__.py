"""What a run is asked to do: the schema of its settings, and what `auto` means on this machine."""
