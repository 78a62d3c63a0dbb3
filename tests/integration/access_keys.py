"""Who the tests of access are: keys of several tenants in a file, and an issuer of tokens whose keys rotate."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.api_keys import make_key


class Issuer:
    """An HTTP server with a key set that rotates."""

    def __init__(self) -> None:
        self.keys = {"k1": ec.generate_private_key(ec.SECP256R1())}
        self.served = dict(self.keys)
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # the server calls it so
                algorithm = jwt.algorithms.ECAlgorithm
                keys = [
                    {**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid} for kid, key in issuer.served.items()
                ]
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps({"keys": keys}).encode())

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/jwks"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def rotate(self) -> None:
        """From now on sign and serve only with a new key."""
        self.keys["k2"] = ec.generate_private_key(ec.SECP256R1())
        self.served = {"k2": self.keys["k2"]}

    def token(self, kid: str, *, tenant: str, scope: str = "*:*") -> str:
        said = {"iss": "i", "aud": "a", "exp": int(time.time()) + 300, "tenant": tenant, "scope": scope, "sub": "robot"}
        return jwt.encode(said, self.keys[kid], algorithm="ES256", headers={"kid": kid})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Keys:
    """A file of keys with one for each kind of caller."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._entries: list[Any] = []
        self.acme = self._add("acme batch", "acme", "infer:*", "jobs:*", "read:*")
        self.rival = self._add("rival", "rival", "infer:*", "jobs:*", "read:*")
        self.reader = self._add("dashboard", "acme", "read:none*")
        self.operator = self._add("operator", "", "manage:*")
        file.write_bytes(msgspec.json.encode({"keys": self._entries}))

    def _add(self, name: str, tenant: str, *scopes: str) -> dict[str, str]:
        key, entry = make_key(name=name, tenant=tenant, scopes=scopes)
        self._entries.append(entry)
        return {"x-api-key": key}

    def all(self) -> list[str]:
        return [each["x-api-key"] for each in (self.acme, self.rival, self.reader, self.operator)]
