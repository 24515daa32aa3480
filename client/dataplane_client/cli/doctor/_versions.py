"""Which versions meet, and whether this installation copies rows in compiled code."""

from __future__ import annotations

import platform
from importlib.metadata import version
from importlib.util import find_spec

import google.protobuf
import grpc

from dataplane_client.cli.doctor._check import Check
from dataplane_client.row_kernels import kernel_name


def version_check(server_version: str | None) -> Check:
    """server_version: None where the server has not answered."""
    ours = version("rl-dataplane")
    libraries = f"grpc {grpc.__version__}, protobuf {google.protobuf.__version__}, Python {platform.python_version()}"
    if server_version is None:
        return Check("versions", "ok", f"client {ours}, {libraries}")
    found = f"client {ours}, server {server_version}, {libraries}"
    if server_version == ours:
        return Check("versions", "ok", found)
    return Check("versions", "warning", found, "install the same version on both sides")


def kernel_check() -> Check:
    """Rows are copied where torch is; a server's image, in which somebody looks around, needs no kernels."""
    if find_spec("torch") is None:
        return Check("row kernels", "ok", "not needed: torch is not installed here")
    if kernel_name == "c":
        return Check("row kernels", "ok", "compiled")
    advice = "install a C compiler (gcc) and then the package anew"
    return Check(
        "row kernels", "warning", "not compiled: NumPy copies rows, on one thread, several times slower", advice
    )
