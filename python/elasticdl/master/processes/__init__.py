"""How many processes run, when one is started again, and which take too long to start."""
