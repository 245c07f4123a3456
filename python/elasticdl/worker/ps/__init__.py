"""The worker with parameter servers."""
