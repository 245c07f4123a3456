"""The certificate by which a process of a job shows other machines that it belongs to it, and the authority that it believes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elasticdl.errors import BadSetting


@dataclass(frozen=True, slots=True)
class Identity:
    """One role's certificate; everything in PEM.

    Attributes:
        authority: the job's own certificate authority, the only one that is believed.
        certificate: of this role, signed by it.
        key: the certificate's private key.
    """

    authority: bytes
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Identity(…)"  # a key has no business in a log


MASTER, WORKER = "master.elasticdl", "worker.elasticdl"
"""The names in the certificates. They are checked in place of addresses: addresses change, the job's authority does not."""


def read_identity(folder: Path) -> Identity:
    """Read `ca.crt`, `tls.crt` and `tls.key`. Raises BadSetting."""
    try:
        return Identity(*((folder / name).read_bytes() for name in ("ca.crt", "tls.crt", "tls.key")))
    except OSError as error:
        raise BadSetting(f"the job's certificate can't be read: {error.filename}: {error.strerror}") from None
