"""The access file: who may call, how they are known, and their roles.

    {
      "callers": [
        {"name": "rollout", "tokens": ["sha256:9f86d0..."], "roles": {"producer": ["train"]}},
        {"name": "trainer", "certificates": ["spiffe://cluster/ns/rl/sa/trainer"], "roles": {"admin": ["train"]}},
        {"name": "grader", "subjects": ["system:serviceaccount:rl:grader"], "roles": {"consumer": ["train"]}}
      ],
      "unix_sockets": {"admin": [""]},
      "jwt": {"keys": "jwks.json", "issuer": "https://kubernetes.default.svc", "audience": "rl-dataplane"}
    }

Tokens are kept as their SHA-256, so who reads the file learns none. They are random, of 128 bits or more, so the hash
needs no salt and a token is found in microseconds. Certificates are known by a subject alternative
name (DNS name or URI), or by the common name of one without any. Subjects are those of JSON Web Tokens whose keys,
issuer and audience "jwt" names; its file of keys is looked for beside the access file. "unix_sockets" are the roles of
those who may open the server's socket files; all of them, if it is left out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from dataplane_server.access.jwt_tokens import JwtRules, load_jwt_rules
from dataplane_server.access.roles import EVERYTHING, ROLES, Caller, Role

_TOKEN = re.compile(r"sha256:([0-9a-f]{64})")
_WAYS = ("tokens", "certificates", "subjects")
_MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class AccessRules:
    """Callers by what proves who they are. tokens: by the SHA-256 in hexadecimal digits."""

    tokens: Mapping[str, Caller] = field(default_factory=dict)
    certificates: Mapping[str, Caller] = field(default_factory=dict)
    subjects: Mapping[str, Caller] = field(default_factory=dict)
    unix_sockets: Caller = EVERYTHING
    jwt: JwtRules | None = None


def load_access_file(file: Path) -> AccessRules:
    """Raises OSError, or ValueError that names the file, the caller and the rule."""
    with file.open("rb") as opened:
        data = opened.read(_MAX_BYTES + 1)
    try:
        if len(data) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES} bytes")
        return _rules(json.loads(data), file.parent)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"access file {file}: {error}") from None


def key_files(rules: AccessRules) -> list[Path]:
    """The files that the access file names."""
    return [] if rules.jwt is None else [rules.jwt.file]


def _rules(found: object, folder: Path) -> AccessRules:
    top = _object("the file", found, {"callers", "unix_sockets", "jwt"})
    callers = [_caller(entry, n) for n, entry in enumerate(_list("callers", top.get("callers", [])))]
    repeated = [name for name, times in Counter(caller.name for caller, _ in callers).items() if times > 1]
    if repeated:
        raise ValueError(f"two callers have the name {repeated[0]!r}")
    known: dict[str, dict[str, Caller]] = {way: {} for way in _WAYS}
    for caller, ways in callers:
        for way, texts in ways.items():
            for text in texts:
                if known[way].setdefault(text, caller) is not caller:
                    raise ValueError(f"{way}: {known[way][text].name!r} and {caller.name!r} have one in common")
    of_jwt = _object("jwt", top.get("jwt", {}), {"keys", "issuer", "audience"})
    jwt = load_jwt_rules(of_jwt, folder) if of_jwt else None
    if known["subjects"] and jwt is None:
        raise ValueError('subjects are those of JSON Web Tokens, and "jwt", which says how to check them, is missing')
    unix = Caller("", _roles("unix_sockets", top["unix_sockets"])) if "unix_sockets" in top else EVERYTHING
    return AccessRules(known["tokens"], known["certificates"], known["subjects"], unix, jwt)


def _caller(entry: object, n: int) -> tuple[Caller, dict[str, list[str]]]:
    found = _object(f"callers[{n}]", entry, {"name", "roles", *_WAYS})
    name = found.get("name")
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= 64:
        raise ValueError(f"callers[{n}]: name must be a text of 1 to 64 printable characters, got {name!r}")
    where = f"caller {name!r}"
    ways = {way: _texts(f"{where}: {way}", found[way]) for way in _WAYS if way in found}
    if not ways:
        raise ValueError(f"{where} has none of {', '.join(_WAYS)}, so no call can be theirs")
    ways["tokens"] = [_token(where, text) for text in ways.get("tokens", ())]
    return Caller(name, _roles(f"{where}: roles", found.get("roles"))), ways


def _token(where: str, text: str) -> str:
    match = _TOKEN.fullmatch(text)
    if match is None:  # the text may be a token, which no log may tell
        raise ValueError(f'{where}: a token is kept as "sha256:" and 64 hexadecimal digits')
    return match[1]


def _roles(where: str, found: object) -> Mapping[Role, tuple[str, ...]]:
    entries = _object(where, found, set(ROLES))
    if not entries:
        raise ValueError(f"{where} must name at least one of {', '.join(ROLES)}")
    roles = {role: tuple(_texts(f"{where}: {role}", prefixes)) for role, prefixes in entries.items()}
    return cast("Mapping[Role, tuple[str, ...]]", roles)


# -- shapes ------------------------------------------------------------------------------------------------------------


def _object(where: str, found: object, known: set[str]) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"{where} must be an object, got {type(found).__name__}")
    if unknown := sorted(set(found) - known):
        raise ValueError(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    return found


def _list(where: str, found: object) -> list[object]:
    if not isinstance(found, list):
        raise ValueError(f"{where} must be a list, got {type(found).__name__}")
    return found


def _texts(where: str, found: object) -> list[str]:
    texts = [text for text in _list(where, found) if isinstance(text, str)]
    if not texts or len(texts) != len(_list(where, found)):
        raise ValueError(f"{where} must be a list of texts that is not empty")
    return texts
