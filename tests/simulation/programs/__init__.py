"""Jobs of programs with training loops: what a session does with a loop, under the scheduler; the program is a generator."""
