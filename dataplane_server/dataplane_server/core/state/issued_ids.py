"""The ids that a server issues: of claims, sessions and reservations.

An id ends with a number that is never used again. Before it is a code that only the server's secret gives, so a client
cannot guess another's ids, though it sees its own. The core computes them again when it is replayed: the secret is part
of the incarnation that its log begins with.
"""

from __future__ import annotations

import hashlib
import secrets
import uuid

_DOT = "."  # between name and secret
_CODE_BYTES = 8


def new_incarnation() -> str:
    """A name that no other server or life has, and a secret of 128 bits."""
    return f"{uuid.uuid4().hex[:12]}{_DOT}{secrets.token_hex(16)}"


def claim_id(incarnation: str, number: int) -> str:
    return _issued(incarnation, str(number))


def session_id(incarnation: str, number: int) -> str:
    return _issued(incarnation, f"s{number}")


def without_code(issued: str) -> str:
    """An id that tells which one is meant, and names it in no call."""
    return f"{issued.partition('-')[0]}-{issued.rpartition('-')[2]}"


def reservation_id(incarnation: str, number: int) -> str:
    return _issued(incarnation, f"g{number}")


def number_of_claim(incarnation: str, text: str) -> int:
    """The number in the id of a claim of this incarnation; 0 for anything else."""
    digits = text.rpartition("-")[2]
    number = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else 0
    return number if number and text == claim_id(incarnation, number) else 0


def _issued(incarnation: str, number: str) -> str:
    name, _, secret = incarnation.partition(_DOT)
    if not secret:  # in tests of the core, which read better without codes
        return f"{name}-{number}"
    code = hashlib.blake2b(number.encode(), digest_size=_CODE_BYTES, key=bytes.fromhex(secret)).hexdigest()
    return f"{name}-{code}-{number}"
