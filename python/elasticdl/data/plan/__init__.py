"""Which records exist and in which order they are consumed: shards, ledger, schedule, tasks, waves. Pure."""
