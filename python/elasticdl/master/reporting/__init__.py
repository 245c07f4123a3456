"""What people see of a job: status, history of events, summary."""
