"""Keys and certificates for a federation with TLS, in the formats that Flower reads."""

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

VALID = datetime.timedelta(days=365)
SKEW = datetime.timedelta(minutes=5)  # between the clocks of two machines
HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")  # what a name server knows
LONGEST = 64  # characters of a common name; clients look at the alternative names


class Certificates(NamedTuple):
    """Files of a server: the authority that its clients trust, its certificate, and its private key."""

    ca: Path
    certificate: Path
    key: Path


class NodeKey(NamedTuple):
    """Files of a node: its private key, and the public one that is registered with the server."""

    private: Path
    public: Path


def check_reached(host: str, address: str) -> None:
    """Refuses what no certificate can be made for.

    >>> check_reached("link.example.org", "192.0.2.300")
    Traceback (most recent call last):
    ...
    ValueError: address='192.0.2.300' is no IPv4 or IPv6 address. Use for example 192.0.2.7.
    """
    if not HOST.fullmatch(host):
        raise ValueError(
            f"host={host!r} is no name of a machine, of letters, digits, - and dots. Use for example link.example.org."
        )
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise ValueError(f"address={address!r} is no IPv4 or IPv6 address. Use for example 192.0.2.7.") from None


def certificates(
    folder: Path, names: Sequence[str] = ("localhost",), addresses: Sequence[str] = ("127.0.0.1",)
) -> Certificates:
    """Writes a new authority and a server certificate for ``names`` and ``addresses``, valid for a year.

    The authority's own key is thrown away: nobody can sign a second certificate with it.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    authority, server = _new_key(), _new_key()
    issuer = _named("fedatoms authority")
    signed_by_itself = _unsigned(issuer, issuer, authority, authority, is_authority=True)
    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
    alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    signed = _unsigned(_named(names[0][:LONGEST]), issuer, server, authority, is_authority=False).add_extension(
        x509.SubjectAlternativeName(alternatives), critical=False
    )
    files = Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    _write_secret(files.key, server, serialization.PrivateFormat.PKCS8)  # first: it refuses to overwrite one
    files.ca.write_bytes(_sign(signed_by_itself, authority))
    files.certificate.write_bytes(_sign(signed, authority))
    return files


def node_key(folder: Path, name: str) -> NodeKey:
    """Writes a new pair of keys, as ``ssh-keygen -t ecdsa -b 384`` does."""
    from cryptography.hazmat.primitives import serialization

    key = _new_key()
    files = NodeKey(folder / name, folder / f"{name}.pub")
    _write_secret(files.private, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    files.public.write_bytes(public + b"\n")
    return files


def _new_key() -> "EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _named(name: str) -> "x509.Name":
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _unsigned(
    subject: "x509.Name",
    issuer: "x509.Name",
    key: "EllipticCurvePrivateKey",
    signer: "EllipticCurvePrivateKey",
    *,
    is_authority: bool,
) -> "x509.CertificateBuilder":
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - SKEW).not_valid_after(now + VALID)
    builder = builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    builder = builder.add_extension(usage, critical=True)
    # newer OpenSSL refuses chains without these two
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    signer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return builder.add_extension(signer_id, critical=False)


def _sign(unsigned: "x509.CertificateBuilder", key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization

    return unsigned.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def _write_secret(path: Path, key: "EllipticCurvePrivateKey", form: "serialization.PrivateFormat") -> None:
    from cryptography.hazmat.primitives import serialization

    data = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    # nobody else may read it, not even for a moment
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
