"""What `import shoal` offers."""
