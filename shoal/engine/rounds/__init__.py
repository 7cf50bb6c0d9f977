"""The round loop. Read `loop.py` first."""
