"""The messages of clients and workers: requests, answers, and their inspection."""
