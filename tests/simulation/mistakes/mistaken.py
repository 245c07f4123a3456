"""What all mistakes have in common."""

from __future__ import annotations

from tests.simulation.world import World


class Mistaken(World):
    faithful = False
