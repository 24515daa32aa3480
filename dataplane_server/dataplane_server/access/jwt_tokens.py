"""JSON Web Tokens, checked with keys from a file: signature, times, issuer and audience.

A token without an end (exp) is refused, and so is one with a symmetric or no signature, whatever the token says of
itself. A checked token is remembered until it ends, so a call costs no signature. Nothing is fetched from anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_LEEWAY_S = 10.0
_MOST_REMEMBERED = 4096
_MAX_TOKEN = 8192


class JwtRules:
    """file: of the keys. keys: by their id (kid)."""

    def __init__(self, file: Path, keys: Mapping[str | None, Any], issuer: str, audience: str) -> None:
        self.file = file
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._checked: dict[str, tuple[str, float]] = {}  # token to its subject and end

    def subject(self, token: str) -> str | None:
        """The subject of a valid token, else None."""
        subject, ends = self._checked.get(token, (None, 0.0))
        if subject is not None and time.time() < ends + _LEEWAY_S:
            return subject
        self._checked.pop(token, None)
        return self._check(token)

    def _check(self, token: str) -> str | None:
        import jwt

        if len(token) > _MAX_TOKEN:
            return None
        try:
            key = self._keys.get(jwt.get_unverified_header(token).get("kid"))
            if key is None:
                return None
            claims = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                issuer=self._issuer,
                audience=self._audience,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "sub"]},
            )
        except jwt.PyJWTError:
            return None
        if len(self._checked) >= _MOST_REMEMBERED:
            self._checked.clear()
        self._checked[token] = claims["sub"], float(claims["exp"])
        return str(claims["sub"])


def load_jwt_rules(found: Mapping[str, Any], folder: Path) -> JwtRules:
    """Raises OSError if the file of keys cannot be read, ValueError if something is missing or wrong."""
    for name in ("keys", "issuer", "audience"):
        if not isinstance(found.get(name), str) or not found[name]:
            raise ValueError(f"jwt: {name} must be a text that is not empty")
    file = folder / found["keys"]
    return JwtRules(file, _keys_of(file), found["issuer"], found["audience"])


def _keys_of(file: Path) -> dict[str | None, Any]:
    try:
        import jwt
    except ImportError:
        raise ValueError('jwt: PyJWT is not installed; pip install "rl-dataplane[jwt]"') from None
    try:
        keys = jwt.PyJWKSet.from_json(file.read_text()).keys
    except (jwt.PyJWTError, ValueError, AttributeError) as error:  # AttributeError: of a list or a number
        raise ValueError(f"jwt: {file} is no set of keys (JWKS): {error}") from None
    if any(key.key_type == "oct" for key in keys):
        raise ValueError(f"jwt: {file} has a symmetric key; who checks tokens could make them")
    return {key.key_id: key for key in keys}
