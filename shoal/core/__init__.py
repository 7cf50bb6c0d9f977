"""What every room needs: errors, settings descriptors, random streams. Knows nobody."""
