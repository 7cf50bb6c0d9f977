"""The uses of a finished run: predict, explain, enroll, compare, promote."""
