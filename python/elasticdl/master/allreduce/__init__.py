"""The master of a synchronous job: views, steps, snapshots of the group's state."""
