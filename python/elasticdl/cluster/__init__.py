"""Where a job's processes live: the Protocol that the master knows, and its implementations."""
