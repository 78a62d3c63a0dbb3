"""KafkaConnection: where Kafka is and how one proves oneself to it, the same for every client of ours.

Knows no Kafka client: the clients take the same names for the same things, so `options` is for any of them. A token is
told by the client's own class, which reads `token()`.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from schemas.errors import InferenceError, invalid

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_MAX_TOKEN_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class KafkaConnection:
    """`bootstrap` is host:port[,host:port]. Paths are of PEM files; an empty `ca` means the system's authorities.

    Secrets are left out of its repr. Raises InferenceError(INVALID_REQUEST) when made of things that do not fit
    together.
    """

    bootstrap: str
    protocol: str = "PLAINTEXT"
    ca: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    check_hostname: bool = True
    mechanism: str = "PLAIN"
    username: str = ""
    password: str = field(default="", repr=False)
    token_file: str = ""

    def __post_init__(self) -> None:
        """Check what can be checked without opening a file."""
        if self.protocol not in PROTOCOLS:
            raise _wrong("kafka_security_protocol", self.protocol, f"use one of {', '.join(PROTOCOLS)}")
        if self.key and not self.certificate:
            raise _wrong("kafka_certificate", "", "a key needs its certificate: name both, or none")
        if not self.is_encrypted and (self.ca or self.certificate):
            raise _wrong("kafka_security_protocol", self.protocol, "certificates need SSL or SASL_SSL")
        if not self.has_sasl and (self.username or self.password or self.token_file):
            raise _wrong("kafka_security_protocol", self.protocol, "a user needs SASL_SSL or SASL_PLAINTEXT")
        if self.has_sasl:
            self._check_sasl()

    @property
    def is_encrypted(self) -> bool:
        """Whether connections are TLS."""
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        """Whether connections log in."""
        return self.protocol.startswith("SASL")

    @property
    def has_token(self) -> bool:
        """Whether they log in with a token: the client needs a provider of it."""
        return self.has_sasl and self.mechanism == "OAUTHBEARER"

    def options(self) -> dict[str, Any]:
        """What a client takes, but for the provider of tokens. Certificates are read once in a process's life.

        Raises InferenceError(INVALID_REQUEST) when a file cannot be used.
        """
        options: dict[str, Any] = {"bootstrap_servers": self.bootstrap, "security_protocol": self.protocol}
        if self.is_encrypted:
            options["ssl_context"] = _ssl_context(self)
        if self.has_sasl:
            options["sasl_mechanism"] = self.mechanism
            if not self.has_token:
                options |= {"sasl_plain_username": self.username, "sasl_plain_password": self.password}
        return options

    def token(self) -> str:
        """The token as the file has it now; whoever renews it replaces the file. Blocks. Raises InferenceError."""
        try:
            with Path(self.token_file).open(encoding="ascii") as file:
                token = file.read(_MAX_TOKEN_BYTES).strip()
        except (OSError, UnicodeDecodeError) as cause:
            raise _wrong("kafka_token_file", self.token_file, f"it cannot be read: {type(cause).__name__}") from cause
        if not token:
            raise _wrong("kafka_token_file", self.token_file, "it is empty")
        return token

    def _check_sasl(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise _wrong("kafka_sasl_mechanism", self.mechanism, f"use one of {', '.join(MECHANISMS)}")
        if self.has_token:
            if not self.token_file:
                raise _wrong("kafka_token_file", "", "OAUTHBEARER needs a file that holds the token")
        elif not (self.username and self.password):
            raise _wrong("kafka_username", self.username, f"{self.mechanism} needs kafka_username and kafka_password")


@lru_cache(maxsize=8)
def _ssl_context(connection: KafkaConnection) -> ssl.SSLContext:
    name, path = "kafka_ca", connection.ca
    try:
        context = ssl.create_default_context(cafile=connection.ca or None)
        context.check_hostname = connection.check_hostname
        name, path = "kafka_certificate", connection.certificate
        if connection.certificate:
            context.load_cert_chain(connection.certificate, connection.key or None, lambda: connection.key_password)
    except (OSError, ValueError) as cause:  # an ssl.SSLError is an OSError
        raise _wrong(name, path, f"it cannot be used: {cause}") from cause
    return context


def _wrong(setting: str, value: str, what: str) -> InferenceError:
    return invalid(
        f"Kafka cannot be reached as the settings say: {setting} {value!r}: {what}",
        field=setting,
        value=value,
        remedy=f"correct {setting}, as an environment variable TIDEGATE_{setting.upper()}",
    )
