"""Mistakes that the simulator must find: one rule of a machine, or of the world, is replaced, named as in the model of the protocol.

A mistake is a `World` whose members, masters, journal, rings or auditor break one rule; everything else is real. Where the rule is
one of a master's values, the master begins with a mistaken value (`new_master`). `FOCUS` says which jobs and faults make a mistake likely
to show; without an entry the ordinary schedules do.
"""
