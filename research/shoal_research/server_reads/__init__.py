"""What the server of a run reads of single rows, by method and setting."""
