"""The functions that `import shoal` offers."""
