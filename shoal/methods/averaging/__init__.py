"""How messages of clients become one state."""
