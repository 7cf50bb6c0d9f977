"""Many runs and one page: what studies and searches share, and search over settings."""
