"""SQL that trains and uses models: statements, the databases they read, and what they leave behind.

Nothing here is known to a worker: a statement becomes an ordinary job on files.
"""
