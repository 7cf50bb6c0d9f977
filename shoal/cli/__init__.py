"""The command line, installed as `shoal`."""
