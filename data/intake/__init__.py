"""Taking in the user's own images, tables, arrays and series."""
