"""Which addresses and URLs webhooks may call."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.webhook_address import literal_address, parse_networks, refusal
from gateway.webhook_url import WebhookRules, origin_of
from schemas.errors import ErrorCode, InferenceError

PUBLIC = ["8.8.8.8", "93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "64:ff9b::8.8.8.8"]
REFUSED = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",  # carrier NAT, and a cloud's metadata at 100.100.100.200
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "64:ff9b::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "100::1",
    "2001:db8::1",
    "2001:0:7f00:1::",
    "2002:7f00:1::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
]
PRIVATE_NETWORKS = [
    ip_network(text)
    for text in ("10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/4")
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_may_be_called(address: str) -> None:
    assert refusal(address, ()) == ""


@pytest.mark.parametrize("address", REFUSED)
def test_whatever_is_not_public_is_refused(address: str) -> None:
    assert refusal(address, ())


@given(st.sampled_from(PRIVATE_NETWORKS), st.integers(0, 2**32 - 1))
def test_no_spelling_of_a_private_ipv4_address_passes(network: object, number: int) -> None:
    base = int(network.network_address)  # type: ignore[attr-defined]  # of both kinds of networks
    address = IPv4Address(base + number % network.num_addresses)  # type: ignore[attr-defined]
    packed = int(address)
    for wrapped in (
        address,
        IPv6Address(packed),  # ::a.b.c.d
        IPv6Address((0xFFFF << 32) + packed),  # mapped
        IPv6Address((0x64FF9B << 96) + packed),  # NAT64
        IPv6Address((0x2002 << 112) + (packed << 80)),  # 6to4
    ):
        assert refusal(str(wrapped), ()), wrapped
    for spelling in (str(address), str(packed), hex(packed), f"0{packed:o}"):
        assert literal_address(spelling) == str(address)


@given(st.integers(0, 2**128 - 1), st.integers(0, 128))
def test_what_is_allowed_may_be_called_whatever_it_is(number: int, length: int) -> None:
    address = IPv6Address(number)
    assert refusal(str(address), [IPv6Network((number, length), strict=False)]) == ""


def test_an_allowed_network_allows_no_other() -> None:
    allowed = parse_networks("10.20.0.0/16, fd12::/16")
    assert refusal("10.20.30.40", allowed) == refusal("fd12::5", allowed) == refusal("::ffff:10.20.1.1", allowed) == ""
    assert refusal("10.21.0.1", allowed)
    assert refusal("fd13::5", allowed)
    assert refusal("127.0.0.1", allowed)
    with pytest.raises(ValueError, match=r"10\.0\.0\.1/8"):
        parse_networks("10.0.0.1/8")


@pytest.mark.parametrize("host", ["example.com", "deadbeef", "1.2.3.4.5", "a.1", "x" * 300])
def test_a_name_is_no_address(host: str) -> None:
    assert literal_address(host) is None


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com/a/b?c=d&token=x",
        "https://example.com:8443",
        "HTTPS://Example.COM/",
        "https://[2606:2800:21f:cb07:6820:80da:af6b:8b2c]/",
        "https://8.8.8.8/",
        "https://under_score.example.com./x",
        "https://xn--exmple-cua.com/",
    ],
)
def test_public_https_urls_are_webhooks(url: str) -> None:
    assert WebhookRules().check(url).scheme == "https"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "begin"),
        ("example.com/x", "begin"),
        ("http://example.com/", "begin"),
        ("file:///etc/passwd", "begin"),
        ("gopher://example.com/", "begin"),
        ("https:///x", "host"),
        ("https://", "host"),
        ("https://example.com:0/", "host"),
        ("https://example.com:99999/", "host"),
        ("https://ex%41mple.com/", "host"),
        ("https://a..@b/", "password"),
        ("https://me:pw@example.com/", "password"),
        ("https://[fe80::1%25eth0]/", "host"),
        ("https://exämple.com/", "characters"),
        ("https://example.com/a b", "characters"),
        ("https://example.com/a\r\nx: y", "characters"),
        ("https://example.com\\@10.0.0.1/", "characters"),
        ("https://10.0.0.1/", "refused: private"),
        ("https://127.1/", "refused: loopback"),
        ("https://0x7f.0.0.1/", "refused: loopback"),
        ("https://017700000001/", "refused: loopback"),
        ("https://2852039166/", "refused: link-local"),
        ("https://localhost/", "refused: loopback"),
        ("https://LOCALHOST./", "refused: loopback"),
        ("https://a.localhost:8000/", "refused: loopback"),
        ("https://[::1]/", "refused: loopback"),
        ("https://[::ffff:169.254.169.254]/", "refused"),
        ("https://example.com/" + "x" * 2048, "characters, of at most"),
    ],
)
def test_what_is_no_webhook_is_refused_with_the_reason(url: str, why: str) -> None:
    with pytest.raises(InferenceError, match=why) as refused:
        WebhookRules().check(url)
    assert (refused.value.code, refused.value.field) == (ErrorCode.INVALID_REQUEST, "tidegate-webhook")
    assert "pw" not in refused.value.message


@given(st.text(max_size=60) | st.text(max_size=40).map("https://".__add__))
def test_whatever_is_sent_is_a_url_or_refused(text: str) -> None:
    try:
        url = WebhookRules().check(text)
    except InferenceError:
        return
    assert url.host
    assert not url.userinfo


def test_rules_can_be_widened() -> None:
    rules = WebhookRules(networks=parse_networks("127.0.0.0/8"), allow_http=True)
    assert rules.check("http://localhost:8080/x").port == 8080
    assert rules.check("http://127.0.0.1/").host == "127.0.0.1"
    with pytest.raises(InferenceError):
        rules.check("http://10.0.0.1/")


def test_an_endpoint_is_scheme_host_and_port() -> None:
    assert origin_of("https://Example.com:8443/a?b#c") == "https://example.com:8443"
    assert origin_of("https://example.com") == "https://example.com"
    assert origin_of("") == ""
    assert "pw" not in origin_of("https://me:pw@example.com/")
