"""SHA256SUMS: a publisher's digests of a version's files, as coreutils' sha256sum writes them. Knows no store."""

from __future__ import annotations

import re
from collections.abc import Collection

from store import DigestMismatch

SHA256SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)")


def parse_sha256sums(data: bytes, *, of: str, names: Collection[str]) -> dict[str, str]:
    """Digests in hexadecimal digits by path; files that are not listed have none.

    Raises DigestMismatch for a line of another form, and for a listed file that is not among `names`: a list that can
    be read only in part, or of which a part has not arrived, vouches for nothing.
    """
    sums: dict[str, str] = {}
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        match = _LINE.fullmatch(line)
        if line and match is None:
            raise DigestMismatch(f"{of}{SHA256SUMS} line {number} is not '<64 hexadecimal digits>  <path>': {line!r}")
        if match:
            sums[match[2]] = match[1].lower()
    missing = sorted(sums.keys() - set(names))
    if missing:
        raise DigestMismatch(f"{of}{SHA256SUMS} lists {missing[0]!r}, which is not there; upload all files")
    return sums
