"""Beside NeMo-RL: a place in its closed factory, in every module that has imported it.

A package of its name takes its place, with the factory that its documentation describes. `test_their_source` has its
own code. Each case runs in a process of its own, which imports it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., str]

STAND_IN = {
    "__init__.py": "",
    "data_plane/__init__.py": """
        from nemo_rl.data_plane.factory import build_data_plane_client
        from nemo_rl.data_plane.interfaces import DataPlaneClient, KVBatchMeta
    """,
    "data_plane/factory.py": """
        def build_data_plane_client(cfg, *, bootstrap=True, checkpointing=False, segment_size=None):
            if cfg is None or not cfg["enabled"] or cfg["impl"] != "transfer_queue":
                raise ValueError("no such implementation")
            return ("theirs", bootstrap, checkpointing, segment_size)
    """,
    "trainer.py": """
        from nemo_rl.data_plane import build_data_plane_client

        def setup(cfg):
            return build_data_plane_client(cfg, bootstrap=False, checkpointing=True, segment_size=None)
    """,
    "data_plane/interfaces.py": """
        class DataPlaneClient: ...
        class KVBatchMeta: ...
    """,
}


@pytest.fixture
def beside_nemo_rl(tmp_path: Path) -> Path:
    """A folder with the stand-in."""
    for name, source in STAND_IN.items():
        file = tmp_path / "site" / "nemo_rl" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(source))
    return tmp_path / "site"


@pytest.mark.long
def test_the_factory_gives_ours_by_its_name_and_leaves_the_others_to_theirs(
    run: Run, address: str, beside_nemo_rl: Path
) -> None:
    code = """
        from nemo_rl import data_plane, trainer  # a module that has imported their factory already
        from nemo_rl.data_plane import build_data_plane_client
        from dataplane_nemo_rl import DataPlaneAdapter, install

        for _ in range(2):
            install()
        ours = {"enabled": True, "impl": "rl_dataplane", "coroutines": True, "connect": {"transport": "grpc"}}
        for build in (build_data_plane_client, data_plane.build_data_plane_client, trainer.setup):
            assert type(build(ours)) is DataPlaneAdapter and build(ours).coroutines
        assert build_data_plane_client({**ours, "address": "localhost:1"}, bootstrap=False).address == "localhost:1"
        theirs = {"enabled": True, "impl": "transfer_queue"}
        assert data_plane.build_data_plane_client(theirs) == ("theirs", True, False, None)
        assert trainer.setup(theirs) == ("theirs", False, True, None)
        for refused in (None, {"enabled": False, "impl": "rl_dataplane"}, {"enabled": True, "impl": "other"}):
            try:
                trainer.setup(refused)
            except ValueError as error:
                assert str(error) == "no such implementation"
            else:
                raise AssertionError(refused)
    """
    run(code, path=[beside_nemo_rl], DATAPLANE_SERVER=address, PYTHONWARNINGS="error")


def test_a_nemo_rl_that_lacks_something_says_so(run: Run, address: str, beside_nemo_rl: Path) -> None:
    with (beside_nemo_rl / "nemo_rl" / "data_plane" / "interfaces.py").open("a") as file:
        file.write("\nimport something_that_it_needs\n")
    code = """
        try:
            import dataplane_nemo_rl
        except ModuleNotFoundError as error:
            assert error.name == "something_that_it_needs"
        else:
            raise AssertionError
    """
    run(code, path=[beside_nemo_rl], DATAPLANE_SERVER=address, PYTHONWARNINGS="error")


@pytest.mark.long
def test_without_nemo_rl_there_is_an_adapter_and_nothing_to_install(run: Run, address: str) -> None:
    code = """
        import sys
        from dataplane_client import KVBatchMeta
        import dataplane_nemo_rl as ours

        assert not {"torch", "tensordict", "grpc"} & set(sys.modules)
        assert ours.KVBatchMeta is KVBatchMeta
        assert ours.build_data_plane_client({}, bootstrap=False, segment_size=3).list_sample_ids("train") == []
        try:
            ours.install()
        except ModuleNotFoundError as error:
            assert error.name == "nemo_rl"
        else:
            raise AssertionError
    """
    run(code, DATAPLANE_SERVER=address, PYTHONWARNINGS="error")
