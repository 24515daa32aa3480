from __future__ import annotations

import pytest
import torch

from dataplane_client.dtypes import WIRE_DTYPES, WireDtype, dtype_name, torch_dtype

REFUSED = [
    value
    for name, value in sorted(vars(torch).items())
    if isinstance(value, torch.dtype) and name.startswith(("qint", "quint", "bits", "int", "uint"))
    if value not in {entry.torch_dtype for entry in WIRE_DTYPES} and str(value) == f"torch.{name}"
]


@pytest.mark.parametrize("entry", WIRE_DTYPES, ids=lambda entry: entry.name)
def test_name_is_torchs_own_and_leads_back_to_the_dtype(entry: WireDtype) -> None:
    assert f"torch.{entry.name}" == str(entry.torch_dtype)
    assert dtype_name(entry.torch_dtype) == entry.name
    assert torch_dtype(entry.name) is entry.torch_dtype
    assert torch.zeros(3 * entry.item_size, dtype=torch.uint8).view(entry.torch_dtype).shape == (3,)


def test_every_torch_dtype_is_either_in_the_table_or_quantized_or_a_shell() -> None:
    known = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    assert known == {entry.torch_dtype for entry in WIRE_DTYPES} | set(REFUSED)


@pytest.mark.parametrize("dtype", REFUSED, ids=str)
def test_quantized_and_shell_dtypes_are_refused_naming_field_and_dtype(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=rf"'weights'.*{dtype}"):
        dtype_name(dtype, "weights")


@pytest.mark.parametrize("name", ["float31", "torch.float32", "", "qint8", "int4"])
def test_unknown_name_is_refused_naming_field_and_name(name: str) -> None:
    with pytest.raises(ValueError, match=rf"'weights'.*'{name}'"):
        torch_dtype(name, "weights")
