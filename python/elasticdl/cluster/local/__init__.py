"""Jobs on this machine: a job's folder, the launcher's side, and its processes."""
