"""One attempt against real servers on this machine; only the resolver is made up, to say what no real one would."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.webhook_address import parse_networks
from gateway.webhook_sender import Attempt, Resolver, WebhookSender
from gateway.webhook_url import WebhookRules
from tests.integration.webhook_receiver import Received, WebhookReceiver, unused_port

BODY = b'{"type":"job.succeeded"}'


class MadeUp:
    """A resolver that answers what it is told, each time the next, and counts."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = answers
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self._answers[min(len(self.asked), len(self._answers)) - 1]


async def attempt(url: str, resolve: Any, *, timeout_s: float = 5.0, networks: str = "127.0.0.0/8") -> Attempt:
    rules = WebhookRules(networks=parse_networks(networks), allow_http=True)
    return await WebhookSender(rules=rules, resolve=resolve, timeout_s=timeout_s).post(url, {"x-mine": "1"}, BODY)


async def test_the_request_goes_to_the_address_and_names_the_host() -> None:
    with WebhookReceiver() as receiver:
        url = receiver.url("/a?b=c%20d", host="hooks.example.com")
        resolver = MadeUp(["127.0.0.1"])
        assert (await attempt(url, resolver)).taken
        (received,) = receiver.received
        assert received.path == "/a?b=c%20d"
        assert received.headers["host"] == url.split("/")[2]
        assert (received.headers["x-mine"], received.body) == ("1", BODY)
        assert resolver.asked == [("hooks.example.com", int(url.split(":")[2].split("/")[0]))]


async def test_a_name_is_resolved_once_so_a_second_answer_gains_nothing() -> None:
    with WebhookReceiver() as receiver:
        rebinding = MadeUp(["127.0.0.1"], ["169.254.169.254"])
        assert (await attempt(receiver.url(host="rebind.example.com"), rebinding)).taken
        assert len(rebinding.asked) == 1
        assert len(receiver.received) == 1


@pytest.mark.parametrize(
    "addresses",
    [["10.0.0.1"], ["127.0.0.1", "10.0.0.1"], ["8.8.8.8", "::ffff:10.0.0.1"], ["169.254.169.254"], ["fe80::1%eth0"]],
)
async def test_a_name_with_any_address_that_is_refused_is_not_called(addresses: list[str]) -> None:
    with WebhookReceiver() as receiver:
        got = await attempt(receiver.url(host="inside.example.com"), MadeUp(addresses))
        assert (got.kind, got.final, got.status) == ("refused", True, 0)
        assert "10.0.0.1" not in got.error  # who may not call it need not know where it leads
        assert receiver.received == []


async def test_a_url_that_the_rules_refuse_is_not_even_resolved() -> None:
    resolver = MadeUp(["127.0.0.1"])
    got = await attempt("http://10.0.0.1/", resolver)
    assert (got.kind, got.final) == ("refused", True)
    assert resolver.asked == []


async def test_a_redirect_is_not_followed() -> None:
    with WebhookReceiver() as other, WebhookReceiver() as receiver:
        receiver.answer = lambda received: (307, {"location": other.url()})
        got = await attempt(receiver.url(), MadeUp(["127.0.0.1"]))
        assert (got.status, got.taken, got.final) == (307, False, False)
        assert other.received == []


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with WebhookReceiver() as proxy, WebhookReceiver() as receiver:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url(""))
        assert (await attempt(receiver.url(host="hooks.example.com"), MadeUp(["127.0.0.1"]))).taken
        assert (len(proxy.received), len(receiver.received)) == (0, 1)


async def test_the_next_address_is_asked_when_nobody_listens_at_the_first() -> None:
    with WebhookReceiver() as receiver:
        assert (await attempt(receiver.url(host="two.example.com"), MadeUp(["127.0.0.2", "127.0.0.1"]))).taken


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (200, {}, Attempt("2xx", 200, alive=True)),
        (204, {}, Attempt("2xx", 204, alive=True)),
        (404, {}, Attempt("4xx", 404, "answered 404", alive=True)),
        (410, {}, Attempt("4xx", 410, "answered 410", final=True, alive=True)),
        (429, {"retry-after": "7"}, Attempt("4xx", 429, "answered 429", retry_after_s=7)),
        (503, {"retry-after": "60"}, Attempt("5xx", 503, "answered 503", retry_after_s=60)),
        (500, {"retry-after": "soon"}, Attempt("5xx", 500, "answered 500")),
    ],
)
async def test_what_an_answer_means(status: int, headers: dict[str, str], expected: Attempt) -> None:
    with WebhookReceiver(lambda received: (status, headers)) as receiver:
        assert await attempt(receiver.url(), MadeUp(["127.0.0.1"])) == expected


async def test_nobody_listening_is_no_end() -> None:
    got = await attempt(f"http://127.0.0.1:{unused_port()}/", MadeUp(["127.0.0.1"]))
    assert (got.kind, got.final, got.alive, got.taken) == ("connection", False, False, False)


async def test_a_name_that_does_not_resolve_is_no_end() -> None:
    resolver = Resolver()
    got = await attempt("http://no-such-name.invalid/", resolver)
    resolver.close()
    assert (got.kind, got.final, got.alive) == ("connection", False, False)


async def test_the_real_resolver_finds_every_address_once() -> None:
    resolver = Resolver()
    assert "127.0.0.1" in (found := await resolver("localhost", 80))
    assert len(found) == len(set(found))
    resolver.close()


async def test_an_endpoint_that_does_not_answer_costs_the_timeout_and_no_more() -> None:
    release = threading.Event()

    def wait(received: Received) -> int:
        release.wait(20)
        return 200

    with WebhookReceiver(wait) as receiver:
        begun_s = time.monotonic()
        got = await attempt(receiver.url(), MadeUp(["127.0.0.1"]), timeout_s=0.5)
        release.set()
        assert (got.kind, got.final, got.alive) == ("timeout", False, False)
        assert time.monotonic() - begun_s < 5


async def test_a_name_server_that_does_not_answer_costs_the_timeout_and_no_more() -> None:
    async def never(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        raise AssertionError

    begun_s = time.monotonic()
    got = await attempt("http://example.com/", never, timeout_s=0.2)
    assert got.kind == "timeout"
    assert time.monotonic() - begun_s < 5


async def test_an_endpoint_that_answers_by_the_byte_costs_the_timeout_and_no_more() -> None:
    server = RawServer(b"HTTP/1.1 200 OK\r\nx-more: ", b"y", pause_s=0.05)
    begun_s = time.monotonic()
    got = await attempt(f"http://127.0.0.1:{server.port}/", MadeUp(["127.0.0.1"]), timeout_s=0.5)
    assert got.kind == "timeout"
    assert time.monotonic() - begun_s < 5
    await asyncio.to_thread(server.ended)


class RawServer:
    """Answers one connection with these bytes, again and again until the other side hangs up."""

    def __init__(self, head: bytes, again: bytes, *, pause_s: float = 0.0) -> None:
        self._head, self._again, self._pause_s = head, again, pause_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.sent_bytes = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.recv(65536)
            try:
                connection.sendall(self._head)
                while self._again:
                    connection.sendall(self._again)
                    self.sent_bytes += len(self._again)
                    time.sleep(self._pause_s)
            except OSError:
                return

    def ended(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._listener.close()


async def test_an_endless_answer_is_not_read() -> None:
    server = RawServer(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"400\r\n" + b"x" * 1024 + b"\r\n")
    got = await attempt(f"http://127.0.0.1:{server.port}/", MadeUp(["127.0.0.1"]))
    await asyncio.to_thread(server.ended)
    assert got.taken
    assert server.sent_bytes < 64 * 1024 * 1024  # what the kernel's buffers take, not what there is


async def test_an_endless_head_is_not_read() -> None:
    server = RawServer(b"HTTP/1.1 200 OK\r\n", b"x-more: " + b"y" * 1000 + b"\r\n")
    got = await attempt(f"http://127.0.0.1:{server.port}/", MadeUp(["127.0.0.1"]))
    await asyncio.to_thread(server.ended)
    assert (got.kind, got.taken) == ("connection", False)


def make_certificate(directory: Path, *names: str) -> tuple[Path, Path]:
    """A certificate for these names that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([*map(x509.DNSName, names), x509.IPAddress(ipaddress.ip_address("127.0.0.9"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    certificate, private = directory / "certificate.pem", directory / "key.pem"
    certificate.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, private


async def test_over_tls_the_certificate_is_the_names_not_the_addresss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, private = make_certificate(tmp_path, "hooks.example.com")
    named: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private)
    context.sni_callback = lambda connection, name, whole: named.append(name)
    with WebhookReceiver(tls=context) as receiver:
        url = receiver.url(host="hooks.example.com")
        untrusted = await attempt(url, MadeUp(["127.0.0.1"]))
        assert (untrusted.kind, untrusted.taken) == ("connection", False)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert (await attempt(url, MadeUp(["127.0.0.1"]))).taken
        assert named[-1] == "hooks.example.com"
        for other in (receiver.url(host="other.example.com"), receiver.url(host="127.0.0.1")):
            refused = await attempt(other, MadeUp(["127.0.0.1"]))
            assert (refused.kind, refused.taken) == ("connection", False)
        assert len(receiver.received) == 1
