"""Bytes that nobody would write, for everything in Python that reads what others have written."""
