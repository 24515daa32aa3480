"""The access file: whom it knows, and what it refuses in words."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from dataplane_server.access import reloading
from dataplane_server.access.access_file import AccessRules, key_files, load_access_file
from dataplane_server.access.gate import Credentials, Gate
from dataplane_server.access.reloading import Reloaded
from dataplane_server.access.roles import EVERYTHING
from dataplane_server.core.calls.refusal import Reason, Refusal

HASH = hashlib.sha256(b"t").hexdigest()
CALLER: dict[str, Any] = {"name": "a", "tokens": [f"sha256:{HASH}"], "roles": {"reader": ["p"]}}
ISSUER, AUDIENCE = "https://issuer.example", "rl-dataplane"
KEY = ec.generate_private_key(ec.SECP256R1())
PEER = "ipv4:192.0.2.1:4000"

Write = Callable[[object], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(content: object) -> Path:
        file = tmp_path / "access.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return file

    return written


def with_caller(**changes: object) -> dict[str, object]:
    return {"callers": [{**CALLER, **changes}]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "Expecting property name"),
        ([], "file .*list"),
        ({"users": []}, "users; .*callers, jwt, unix_sockets"),
        ({"callers": {}}, "callers must be a list, got dict"),
        (with_caller(name=""), r"callers\[0\]: name must be a text of 1 to 64 printable characters"),
        (with_caller(name="a\x1b[2J"), r"callers\[0\]: name must be"),
        (with_caller(tokens=["plain"]), "caller 'a': .*sha256.*64"),
        (with_caller(tokens=[]), "caller 'a': tokens"),
        (with_caller(roles={}), "caller 'a': roles .*reader, producer, consumer, admin"),
        (with_caller(roles={"owner": ["p"]}), "caller 'a': roles: unknown owner"),
        (with_caller(roles={"reader": "p"}), "caller 'a': roles: reader must be a list, got str"),
        ({"callers": [{"name": "a", "roles": {"reader": [""]}}]}, "caller 'a' .*tokens, certificates"),
        ({"callers": [CALLER, CALLER]}, "name 'a'"),
        ({"callers": [CALLER, {**CALLER, "name": "b"}]}, "tokens: 'a' .*'b'"),
        (with_caller(subjects=["s"]), "subjects.*jwt"),
        ({"jwt": {"keys": "k", "issuer": "i"}}, "jwt: audience"),
        ({"unix_sockets": {"readers": [""]}}, "unix_sockets: unknown readers"),
    ],
)
def test_what_makes_no_sense_is_refused_by_file_caller_and_rule(write: Write, content: object, words: str) -> None:
    file = write(content)
    with pytest.raises(ValueError, match=words) as refused:
        load_access_file(file)
    assert str(refused.value).startswith(f"access file {file}: ")
    assert "plain" not in str(refused.value)


def test_a_missing_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_access_file(tmp_path / "none.json")


def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 4194304 bytes"):
        load_access_file(Path("/dev/zero"))


def test_without_a_word_on_unix_sockets_their_files_decide(write: Write) -> None:
    assert load_access_file(write(with_caller())).unix_sockets is EVERYTHING


# -- JSON Web Tokens ---------------------------------------------------------------------------------------------------


def key_set(key: ec.EllipticCurvePrivateKey = KEY) -> str:
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return json.dumps({"keys": [{**public, "kid": "1", "alg": "ES256"}]})


@pytest.fixture
def gate(write: Write, tmp_path: Path) -> Gate:
    (tmp_path / "keys.json").write_text(key_set())
    caller = {"name": "grader", "subjects": ["ns:grader"], "roles": {"consumer": ["train"]}}
    jwt_block = {"keys": "keys.json", "issuer": ISSUER, "audience": AUDIENCE}
    file = write({"callers": [caller], "jwt": jwt_block})
    rules: Reloaded[AccessRules] = Reloaded([file], lambda: load_access_file(file), key_files)
    return Gate(rules, lambda held_id: None, lambda session_id: None, lambda request: False)


def token(key: Any = KEY, algorithm: str = "ES256", kid: str = "1", **changes: object) -> str:
    claims = {"sub": "ns:grader", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60, **changes}
    return jwt.encode({name: value for name, value in claims.items() if value}, key, algorithm, headers={"kid": kid})


def test_the_subject_of_a_valid_token_is_a_caller(gate: Gate) -> None:
    sent = token()
    for _ in range(2):  # the second is remembered
        caller = gate.at_port(Credentials(PEER, sent))
        assert (caller.name, caller.may("ClaimSamples", "train-1"), caller.may("PutSamples", "train-1")) == (
            "grader",
            True,
            False,
        )


def test_a_token_that_was_valid_is_refused_once_it_has_ended(gate: Gate) -> None:
    known = None
    while known is None:  # on a busy machine a token may end before it is looked at
        ends = token(exp=int(time.time()) - 8)  # within the leeway, for two seconds at most
        with contextlib.suppress(Refusal):
            known = gate.at_port(Credentials(PEER, ends))

    def use_for_ever() -> None:
        while gate.at_port(Credentials(PEER, ends)) is known:
            time.sleep(0.05)

    with pytest.raises(Refusal) as refused:
        use_for_ever()
    assert refused.value.reason is Reason.UNAUTHENTICATED


def test_keys_are_read_again_when_their_file_changes(gate: Gate, tmp_path: Path) -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "keys.json").write_text(key_set(other))
    time.sleep(1.1)  # a second is how late it may be looked at
    assert gate.at_port(Credentials(PEER, token(other))).name == "grader"
    with pytest.raises(Refusal) as refused:
        gate.at_port(Credentials(PEER, token(exp=time.time() + 61)))
    assert refused.value.reason is Reason.UNAUTHENTICATED


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "_LOOK_S", 0.0)
    file = tmp_path / "keys"
    file.write_text("")

    def load() -> str:
        found = file.read_text()
        file.write_text("newer" * (len(found) < 20) + found)
        return found

    value: Reloaded[str] = Reloaded([file], load)
    assert [value.now() for _ in range(4)][-1] == file.read_text() == "newer" * 4


def test_a_file_that_cannot_be_read_is_tried_again_and_logged_once(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reloading, "_LOOK_S", 0.0)
    file = write({"callers": []})
    rules: Reloaded[AccessRules] = Reloaded([file], lambda: load_access_file(file), key_files)
    write({"jwt": {"keys": "keys.json", "issuer": ISSUER, "audience": AUDIENCE}})
    assert [rules.now().jwt for _ in range(3)] == [None] * 3
    (tmp_path / "keys.json").write_text(key_set())
    assert rules.now().jwt is not None
    assert caplog.text.count("reload_failed") == 1


@pytest.mark.parametrize(
    "sent",
    {
        "ended": lambda: token(exp=time.time() - 60),
        "without an end": lambda: token(exp=None),
        "of another issuer": lambda: token(iss="https://other.example"),
        "for another audience": lambda: token(aud="kubernetes"),
        "not yet valid": lambda: token(nbf=time.time() + 60),
        "of another key": lambda: token(ec.generate_private_key(ec.SECP256R1())),
        "of an unknown key": lambda: token(kid="2"),
        "without a signature": lambda: token(None, "none"),
        "with a symmetric signature": lambda: token("x" * 32, "HS256"),
        "of an unknown subject": lambda: token(sub="ns:other"),
        "no token": lambda: "a.b.c",
        "endless": lambda: "a" * 9000,
    }.items(),
    ids=lambda item: item[0],
)
def test_other_tokens_are_refused(gate: Gate, sent: tuple[str, Callable[[], str]]) -> None:
    with pytest.raises(Refusal) as refused:
        gate.at_port(Credentials(PEER, sent[1]()))
    assert refused.value.reason is Reason.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ('{"keys": [{"kty": "oct", "k": "eHg", "kid": "1", "alg": "HS256"}]}', "has a symmetric key"),
        ('[{"kty": "EC"}]', "is no set of keys"),
        ("-----BEGIN PUBLIC KEY-----", "is no set of keys"),
    ],
)
def test_keys_that_cannot_be_used_are_refused_with_their_file(
    write: Write, tmp_path: Path, keys: str, words: str
) -> None:
    (tmp_path / "keys.json").write_text(keys)
    with pytest.raises(ValueError, match=rf"keys\.json {words}"):
        load_access_file(write({"jwt": {"keys": "keys.json", "issuer": "i", "audience": "a"}}))
