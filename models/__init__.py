"""Networks only: encoders and heads. Knows no other room."""
