"""The master of jobs that evaluate or predict, and train nothing."""
