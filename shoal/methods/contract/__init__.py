"""What a method is: its steps, messages, declarations and settings."""
