"""What is said where GPUs are reserved for workers and their library sees none; whether it does, and why not, each framework finds out."""

from __future__ import annotations

LOOK = "see whether `nvidia-smi` works in a pod on that node"
"""What to do where the node's driver may be missing."""


def unused_gpus(library: str, reserved: int, why: str) -> str:
    """Return that sentence. `library`: its name; `why`: what is the matter, and what to do."""
    are = "GPUs are" if reserved > 1 else "GPU is"
    return f"{reserved} {are} reserved for each worker, {library} sees none, and trains on CPUs: {why}"


def built_for_cpus(image: str) -> str:
    """Return why a library that was built without CUDA sees none. `image`: how to get one with CUDA."""
    return f"it is built for CPUs only; {image}, or leave gpu out of --worker_resource_request"
