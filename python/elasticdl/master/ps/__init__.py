"""The master of a job with parameter servers: leases, placement, copies, snapshots, roll-back."""
