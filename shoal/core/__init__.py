"""What every room needs: errors, records, settings descriptors, random streams. It imports no other room."""
