"""An issuer of JSON Web Tokens: RS256 with real keys, and its key set. Source: RFC 7515, RFC 7517, RFC 7519."""

import json
import time
from base64 import urlsafe_b64encode
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256

ISSUER, AUDIENCE = "https://idp.test", "inference"


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int) -> str:
    return _encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


class TokenIssuer:
    """One key, named ``k``."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def key_set(self) -> str:
        numbers = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "kid": "k", "alg": "RS256", "use": "sig"}
        return json.dumps({"keys": [{**key, "n": _number(numbers.n), "e": _number(numbers.e)}]})

    def token(self, **claims: Any) -> str:
        """A token that is valid for an hour, with these claims; a claim of None is left out."""
        now_s = int(time.time())
        whole = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now_s, "exp": now_s + 3600, **claims}
        parts = ({"alg": "RS256", "typ": "JWT", "kid": "k"}, {k: v for k, v in whole.items() if v is not None})
        text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
        return f"{text}.{_encoded(self._key.sign(text.encode(), PKCS1v15(), SHA256()))}"

    def header(self, **claims: Any) -> dict[str, str]:
        """The header of a caller with such a token."""
        return {"authorization": f"Bearer {self.token(**claims)}"}
