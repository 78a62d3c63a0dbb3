"""What can go wrong when a part of the local stack is started. Each message ends with what to do about it.

Must not know how any part is started: the command line catches LocalStackError and prints it, nothing else.
"""


class LocalStackError(RuntimeError):
    """A part of the local stack cannot be had or started; the message says what to do."""


class JavaNotFoundError(LocalStackError):
    """There is no Java on this machine and it cannot be installed from here."""


class JavaTooOldError(LocalStackError):
    """Java is there, but older than Kafka needs."""


class MavenNotFoundError(LocalStackError):
    """There is no Maven on this machine, it cannot be installed from here, and the jars are not cached."""


class JarsError(LocalStackError):
    """The jars of Kafka could not be had."""


class PortTakenError(LocalStackError):
    """Another process listens on the port that was asked for."""


class KafkaStartError(LocalStackError):
    """Kafka did not start; the message holds the end of its log and the log's path."""
