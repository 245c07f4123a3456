//! The wires between members: frames, endpoint, ring, state transfer, heartbeats.
