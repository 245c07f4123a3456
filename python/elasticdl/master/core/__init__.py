"""What every master has: journal, requests, failures, the end."""
