"""Custom training loops: what drives a program's loop in a job of several workers, or in this process alone."""
