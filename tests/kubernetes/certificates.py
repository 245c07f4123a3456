"""The test cluster's certificate authority, the API server's certificate, and the key that signs service accounts' tokens."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")


def write(folder: Path, addresses: Sequence[str]) -> None:
    """Write `ca.crt`, `server.crt`, `server.key`, `sa.key` and `sa.pub`; the server answers at `addresses`."""
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test-cluster")])
    root = (
        _certificate(name, name, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(authority, hashes.SHA256())
    )
    alternatives = [
        *(x509.DNSName(known) for known in _NAMES),
        *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
    ]
    leaf = (
        _certificate(
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "apiserver")]), name, server.public_key()
        )
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(authority, hashes.SHA256())
    )
    accounts = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for file, content in {
        "ca.crt": root.public_bytes(serialization.Encoding.PEM),
        "server.crt": leaf.public_bytes(serialization.Encoding.PEM),
        "server.key": _private(server),
        "sa.key": _private(accounts),
        "sa.pub": accounts.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    }.items():
        (folder / file).write_bytes(content)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
    )


def _private(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
