"""Attacks on what runs: by strangers who reach a port, and by peers of a job that are confused."""
