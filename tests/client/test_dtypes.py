"""Element types by name, and those that do not travel."""

from __future__ import annotations

import pytest
import torch

from dataplane_client.codec import WIRE_DTYPES, dtype_name, torch_dtype

REFUSED = [
    value
    for name, value in sorted(vars(torch).items())
    if isinstance(value, torch.dtype) and name.startswith(("qint", "quint", "bits", "int", "uint"))
    if value not in {entry.torch_dtype for entry in WIRE_DTYPES} and str(value) == f"torch.{name}"
]


def test_a_name_is_torchs_own_and_leads_back_to_the_dtype() -> None:
    for entry in WIRE_DTYPES:
        assert f"torch.{entry.name}" == str(entry.torch_dtype)
        assert dtype_name(entry.torch_dtype) == entry.name
        assert torch_dtype(entry.name) is entry.torch_dtype
        assert torch.zeros(3 * entry.item_size, dtype=torch.uint8).view(entry.torch_dtype).shape == (3,)


def test_every_torch_dtype_is_either_in_the_table_or_quantized_or_a_shell() -> None:
    known = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    assert known == {entry.torch_dtype for entry in WIRE_DTYPES} | set(REFUSED)


def test_what_does_not_travel_is_refused_naming_field_and_type() -> None:
    for dtype in REFUSED:
        with pytest.raises(TypeError, match=rf"'weights'.*{dtype}"):
            dtype_name(dtype, "weights")
    for name in ("float31", "torch.float32", "", "qint8", "int4"):
        with pytest.raises(ValueError, match=rf"'weights'.*'{name}'"):
            torch_dtype(name, "weights")
