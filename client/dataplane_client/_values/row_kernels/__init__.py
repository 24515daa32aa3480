"""Copies and hashes many rows of bytes at once, on several threads; compiled if the installation found a C compiler."""

from dataplane_client._values.row_kernels._copies import RowCopy
from dataplane_client._values.row_kernels._dispatch import (
    copy_and_hash_rows,
    copy_rows,
    default_threads,
    hash_rows,
    kernel_name,
)

__all__ = [
    "RowCopy",
    "copy_and_hash_rows",
    "copy_rows",
    "default_threads",
    "hash_rows",
    "kernel_name",
]
