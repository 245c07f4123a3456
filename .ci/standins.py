"""Puts empty libraries where PyTorch's own libraries look for those of CUDA that are not installed: for tests on machines without a GPU.

A program can't be loaded without the libraries that it was linked with, though it calls nothing of them: those for GPUs are called once one
was found, and the library that looks for it, libcudart, has to be the real one. Which are missing, with which versions of symbols, is read
from the files that need them. Every function of theirs returns 1, an error to CUDA.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
VERSION = re.compile(r"File: (\S+)|Name: (\S+)")
UNDEFINED = re.compile(r"^\s+U (_?(?:cu|nv|nccl)[^\s@]+)(?:@+(\S+))?$", re.MULTILINE | re.IGNORECASE)
OF_CUDA = re.compile(r"lib(?:cu|nv|nccl)")


def run(*command: str | Path) -> str:
    """Run a command and return what it prints."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def versions(library: Path) -> Iterator[tuple[str, str]]:
    """Yield (library, version of symbols) of what a library was linked with."""
    needed = ""
    for file, name in VERSION.findall(run("readelf", "--wide", "--version-info", library)):
        needed = file or needed
        if name and OF_CUDA.match(needed):
            yield needed, name


def main() -> None:
    """Find what is missing, and make it."""
    found = importlib.util.find_spec("torch")
    assert found is not None, "torch is not installed"
    assert found.origin is not None, "torch is no package of files"
    folder = Path(found.origin).with_name("lib")
    ours = [one for one in folder.glob("*.so*") if not OF_CUDA.match(one.name)]
    present = {one.name for one in folder.parents[1].glob("nvidia/*/lib/*.so*")}
    missing: dict[str, set[str]] = {}
    symbols: defaultdict[str, set[str]] = defaultdict(set)
    for library in ours:
        for name in NEEDED.findall(run("readelf", "--wide", "--dynamic", library)):
            if OF_CUDA.match(name) and name not in present:
                missing.setdefault(name, set())
        for symbol, version in UNDEFINED.findall(run("nm", "--dynamic", "--undefined-only", library)):
            symbols[version].add(symbol)
    for library in ours:
        for name, version in versions(library):
            if name in missing:
                missing[name].add(version)
    # one of them has all symbols that name no library: any that is loaded may have them
    without = symbols.pop("", set())
    for number, (name, wanted) in enumerate(sorted(missing.items())):
        make(
            folder / name,
            {version: symbols[version] for version in wanted},
            without if number == 0 else set(),
        )
    print(f"{len(missing)} empty libraries stand in for CUDA's: this PyTorch is for tests and sees no GPU")


def make(path: Path, versioned: dict[str, set[str]], symbols: set[str]) -> None:
    """Make a library of functions that return 1, some of them with versions."""
    everything = sorted(symbols.union(*versioned.values()))
    with tempfile.TemporaryDirectory() as name:
        source, script = Path(name, "empty.c"), Path(name, "versions")
        source.write_text("".join(f"int {one}(void) {{ return 1; }}\n" for one in everything))
        script.write_text(
            "".join(
                f"{version} {{ global: {'; '.join(sorted(them))}; }};\n"
                for version, them in versioned.items()
            )
        )
        options = [f"-Wl,--version-script={script}"] if versioned else []
        run("cc", "-shared", "-fPIC", "-w", *options, f"-Wl,-soname,{path.name}", "-o", path, source)


if __name__ == "__main__":
    sys.exit(main())
