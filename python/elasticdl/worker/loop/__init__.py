"""Custom training loops: the session that a program drives, in a job and alone."""
