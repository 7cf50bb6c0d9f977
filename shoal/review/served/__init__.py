"""What a finished run is used for: predict, explain, enroll, compare, promote."""
