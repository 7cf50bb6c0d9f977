"""Names of `as_gpu`, which changes the process that imports it."""

NOTES = "SHOAL_PRETEND_NOTES"
"""The environment variable that names the file of what the device was asked."""
THIS = "tests.pretend_gpu.as_gpu"
"""The module that carries out another."""
