"""What a model has on the parameter servers: tables, variables, the optimizer, and how trained tables are read."""
