"""KafkaAccessSettings: how one proves oneself to Kafka, as an operator says it. Knows no Kafka client.

The gateway has the same group in gateway/settings_kafka.py: neither side may import the other, and the contract between
them is free of pydantic. A test holds the two equal.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings

from schemas.errors import InferenceError
from schemas.kafka_connection import KafkaConnection


class KafkaAccessSettings(BaseSettings):
    """Where Kafka is, and how one proves oneself to it."""

    kafka_bootstrap: Annotated[str, Field(description="Kafka brokers to ask first: host:port[,host:port].")] = (
        "localhost:9092"
    )
    kafka_security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        Field(description="How to speak to Kafka: SSL encrypts, SASL logs in."),
    ] = "PLAINTEXT"
    kafka_ca: Annotated[
        str,
        Field(description="PEM file of the authorities that brokers' certificates are of; empty: the system's."),
    ] = ""
    kafka_certificate: Annotated[
        str,
        Field(description="PEM file of our certificate, where brokers ask for one; with its key or not."),
    ] = ""
    kafka_key: Annotated[str, Field(description="PEM file of that certificate's key; empty: in the same file.")] = ""
    kafka_key_password: Annotated[
        SecretStr, Field(description="Password of that key; better given as TIDEGATE_KAFKA_KEY_PASSWORD.")
    ] = SecretStr("")
    kafka_check_hostname: Annotated[
        bool, Field(description="Whether a broker's certificate must name the host that was asked for.")
    ] = True
    kafka_sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"],
        Field(description="How to log in, with SASL."),
    ] = "PLAIN"
    kafka_username: Annotated[str, Field(description="User to log in as, with PLAIN and SCRAM.")] = ""
    kafka_password: Annotated[
        SecretStr, Field(description="The user's password; better given as TIDEGATE_KAFKA_PASSWORD.")
    ] = SecretStr("")
    kafka_token_file: Annotated[
        str, Field(description="File that holds the token, with OAUTHBEARER; read anew for each connection.")
    ] = ""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        try:
            self.kafka_connection()
        except InferenceError as error:
            raise ValueError(error.message) from error
        return self

    def kafka_connection(self) -> KafkaConnection:
        """The connection that these settings describe."""
        return KafkaConnection(
            bootstrap=self.kafka_bootstrap,
            protocol=self.kafka_security_protocol,
            ca=self.kafka_ca,
            certificate=self.kafka_certificate,
            key=self.kafka_key,
            key_password=self.kafka_key_password.get_secret_value(),
            check_hostname=self.kafka_check_hostname,
            mechanism=self.kafka_sasl_mechanism,
            username=self.kafka_username,
            password=self.kafka_password.get_secret_value(),
            token_file=self.kafka_token_file,
        )
