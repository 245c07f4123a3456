"""Check licences and sources of everything that this project depends on, as installed and locked here; needs no network."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from .licences import is_allowed, of_metadata

ROOT = Path(__file__).resolve().parents[2]
READ = {"namex": "Apache-2.0"}
"""Licences of packages whose metadata name none, as their repositories say."""
NOT_INSTALLED = ("tensorflow-gpu", "torch", "jax", "mxnet", "tf_keras")
"""Extras that `make setup` leaves out: two bring gigabytes of CUDA libraries under NVIDIA's own licence, one an old NumPy, the last another
package of TensorFlow than the one for CPUs (tf_keras itself, Apache-2.0, is installed)."""


def main() -> int:
    policy = tomllib.loads((ROOT / "rust" / "deny.toml").read_text())
    registries = policy["sources"]["allow-registry"]
    found = dict(packages())
    for manifest in manifests(ROOT / "rust"):
        found |= crates(manifest, registries)
    wrong = {
        what: why
        for what, licence in found.items()
        if (why := judge(licence, allowed_of(what, policy["licenses"])))
    }
    for what, why in wrong.items():
        print(f"{what}: {why}; rust/deny.toml says what is allowed", file=sys.stderr)
    print(f"{len(found)} dependencies, {len(wrong)} of them not allowed")
    return bool(wrong)


def allowed_of(what: str, licences: Mapping[str, Any]) -> list[str]:
    """Return the licences that are allowed for a crate or package, given as (kind, name, version) in one text."""
    name = what.split()[1]
    excepted = [one["allow"] for one in licences.get("exceptions", []) if one["crate"] == name]
    return sum(excepted, list(licences["allow"]))


def judge(licence: str, allowed: list[str]) -> str:
    """Return why something may be no dependency, or nothing."""
    if licence.startswith("from "):
        return f"it comes {licence}"
    if not licence:
        return "it names no licence"
    return "" if is_allowed(licence, allowed) else f"its licence is {licence}"


def manifests(root: Path) -> list[Path]:
    """Return the Cargo.toml beside each Cargo.lock in the source."""
    return sorted(
        lock.with_name("Cargo.toml") for lock in (*root.glob("Cargo.lock"), *root.glob("*/Cargo.lock"))
    )


def crates(manifest: Path, registries: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (crate, licence) of what the Cargo.lock beside a manifest has; the place that it is from, where that is no registry of ours."""
    ask = [
        "cargo",
        "metadata",
        "--locked",
        "--format-version=1",
        "--manifest-path",
        str(manifest),
    ]
    metadata = json.loads(subprocess.run(ask, stdout=subprocess.PIPE, check=True).stdout)
    sources = {None, *(f"registry+{registry}" for registry in registries)}
    for crate in metadata["packages"]:
        yield f"crate {crate['name']} {crate['version']}", of_crate(crate, sources)


def of_crate(crate: Mapping[str, Any], sources: set[str | None]) -> str:
    """Return the licence of a crate, or the place that it is from if that is not one of `sources`."""
    return str(crate["license"] or "") if crate["source"] in sources else f"from {crate['source']}"


def packages() -> Iterator[tuple[str, str]]:
    """Yield (package, licence) of what pyproject.toml asks for and what that needs, as far as it is for this machine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        lines for extra, lines in project["optional-dependencies"].items() if extra not in NOT_INSTALLED
    ]
    todo = [Requirement(line) for lines in (project["dependencies"], *extras) for line in lines]
    seen = set()
    while todo:
        wanted = todo.pop()
        key = (re.sub(r"[-_.]+", "-", wanted.name).lower(), frozenset(wanted.extras))
        if key in seen or not _is_for_here(wanted, set()):
            continue
        seen.add(key)
        try:
            found = distribution(wanted.name)
        except PackageNotFoundError:
            yield f"package {wanted.name}", "from nowhere: it is not installed; `make setup` does"
            continue
        yield f"package {found.name} {found.version}", of_package(found)
        for line in found.requires or []:
            needed = Requirement(line)
            if _is_for_here(needed, wanted.extras):
                needed.marker = None
                todo.append(needed)


def of_package(found: Distribution) -> str:
    """Return the licence of an installed package, or the place that it is from if that is no index."""
    if direct := found.read_text("direct_url.json"):
        return f"from {json.loads(direct).get('url')}"
    about = found.metadata
    kinds = [one for one in about.get_all("Classifier", []) if one.startswith("License ::")]
    words = [one.rpartition("::")[2].strip() for one in kinds]
    licence = of_metadata(about.get("License-Expression") or "", about.get("License") or "", words)
    return licence or READ.get(found.name, "")


def _is_for_here(wanted: Requirement, extras: set[str]) -> bool:
    return wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in {"", *extras})


if __name__ == "__main__":
    sys.exit(main())
