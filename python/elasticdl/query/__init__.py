"""SQL: from a table to a model, and back into a table."""
