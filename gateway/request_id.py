"""RequestId: the id by which a caller finds his request again in logs and traces."""

from __future__ import annotations

import re
from collections.abc import Mapping

_REQUEST_ID = re.compile(rb"[!-~]{1,128}")


def request_id_of(sent: Mapping[bytes, bytes], own: str) -> str:
    """The caller's own request id if he sent one that can be given back, else `own`."""
    told = sent.get(b"x-request-id")
    return told.decode() if told is not None and _REQUEST_ID.fullmatch(told) else own
