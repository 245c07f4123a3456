"""The real machines of jobs that evaluate or predict, under faults by number."""
