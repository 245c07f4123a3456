"""Bringing events to a master's machine and carrying out what it says."""
