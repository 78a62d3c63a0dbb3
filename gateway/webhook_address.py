"""Addresses that webhooks may call: public ones, and what an operator allows. Pure: resolves no name.

A webhook's URL is written by a caller, and the call is made from inside: without these rules it would reach cloud
metadata, databases and admin pages that trust whoever is on the same network.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

# What ipaddress takes for public, or does in some of its versions. 168.63.129.16 answers on every host of a cloud, as
# 169.254.169.254 does.
_SPECIAL = tuple(
    ip_network(text)
    for text in ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16", "3fff::/20")
)
_UNICAST = IPv6Network("2000::/3")  # all that is given out; what stands for an IPv4 address is outside, or special
_NAT64 = IPv6Network("64:ff9b::/96")  # how hosts without IPv4 reach IPv4: the address is in the last four bytes


def parse_networks(text: str) -> tuple[Network, ...]:
    """Networks separated by spaces or commas. Raises ValueError naming the one that is none."""
    return tuple(ip_network(part) for part in text.replace(",", " ").split())


def refusal(text: str, allowed: Sequence[Network]) -> str:
    """Why an address must not be called; "" when it may. Raises ValueError for what is no address."""
    address = ip_address(text.partition("%")[0])  # a zone says which interface, not where
    if _within(address, allowed):
        return ""
    if isinstance(address, IPv6Address) and address in _NAT64:
        return refusal(str(IPv4Address(int(address) & 0xFFFFFFFF)), allowed)
    return _kind(address)


def literal_address(host: str) -> str | None:
    """The address that a host is written as, in any of the spellings that resolvers take, such as 2130706433 for
    127.0.0.1; None for a name. `host` is without brackets.
    """
    try:
        return str(ip_address(host.partition("%")[0]))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except (OSError, UnicodeEncodeError):
        return None


def _within(address: Address, networks: Sequence[Network]) -> bool:
    if any(address in network for network in networks):
        return True
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped is not None and any(mapped in network for network in networks)


def _kind(address: Address) -> str:
    kinds = (
        (address.is_loopback, "loopback"),
        (address.is_unspecified, "unspecified"),
        (address.is_link_local, "link-local"),
        (address.is_multicast, "multicast"),
        (address.is_private, "private"),
        (any(address in network for network in _SPECIAL), "special"),
        (address.is_reserved or (isinstance(address, IPv6Address) and address not in _UNICAST), "reserved"),
        (not address.is_global, "shared"),
    )
    return next((kind for holds, kind in kinds if holds), "")
