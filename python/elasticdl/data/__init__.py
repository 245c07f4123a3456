"""Shards, ledger, schedule, readers: which records exist, in which order, and how they are read."""
