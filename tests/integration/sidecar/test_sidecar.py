"""Server and client as the containers of a pod, or of two pods of a node: other users, one group, one volume.

The server runs as its image has it, the client as a trainer's security context has it. The volume is a directory of
root's with the pod's fsGroup, set-group-ID, so that whatever is made in it is of that group: mode 2777 is what kubelet
makes of an emptyDir, 2770 what an administrator makes for a hostPath.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.forked import FORKS
from tests.integration.sidecar.containers import MOUNT, Container, ServerContainer
from tests.integration.sidecar.trainers import Work, work

FS_GROUP = 2000
SERVER_USER = 65532
TRAINER = (1000, 1000)


pytestmark = [
    FORKS,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become the users of containers"),
]

Serve = Callable[..., ServerContainer]


def refused(container: Container) -> str:
    """Why a client in this container cannot reach the server. Its deadline grows until the client has tried once."""
    for timeout_s in (0.3, 3.0, 30.0):
        with pytest.raises(AssertionError) as caught:
            container.run(work, "p", "auto", timeout_s)
        if "no answer before the deadline" not in str(caught.value):
            break
    return str(caught.value)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where other users may go, unlike in pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="sidecar-"))
    path.chmod(0o755)
    try:
        Container(path, *TRAINER, FS_GROUP, own_network=True).run(os.getpid)
    except AssertionError as error:
        pytest.skip(f"namespaces, which containers have, are not permitted here: {error}")
    else:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture(scope="module")
def make_pod(folder: Path) -> Callable[..., Container]:
    """The server's container of a pod that has a volume of its own, with this mode."""

    def make(mode: int = 0o2777, *, own_network: bool = False) -> Container:
        volume = folder / f"volume-{len(list(folder.glob('volume-*')))}"
        volume.mkdir()
        os.chown(volume, 0, FS_GROUP)
        volume.chmod(mode)
        return Container(volume, SERVER_USER, SERVER_USER, FS_GROUP, own_network=own_network)

    return make


@pytest.fixture(scope="module")
def serve(folder: Path) -> Iterator[Serve]:
    """Start the server in a container and wait until it serves."""
    servers: list[ServerContainer] = []

    def start(container: Container, *flags: str) -> ServerContainer:
        servers.append(ServerContainer(container, folder / f"server-{len(servers)}.log", *flags))
        return servers[-1].started()

    yield start
    for server in servers:
        server.end()


@pytest.fixture(scope="module")
def pod(make_pod: Callable[..., Container], serve: Serve) -> Container:
    """A pod whose server lets its group in."""
    pod = make_pod()
    serve(pod, "--socket-mode", "0660")
    return pod


def test_a_trainer_in_the_pod_exchanges_values_through_memory(pod: Container) -> None:
    assert pod.of(*TRAINER).run(work, "pod") == Work("shm", right=True)


def test_the_sockets_are_the_servers_and_their_group_the_pods(pod: Container) -> None:
    for name in ("dataplane.sock", "dataplane.sock.local"):
        found = (pod.volume / name).stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (SERVER_USER, FS_GROUP, 0o660)


def test_a_trainer_in_another_pod_of_the_node_exchanges_values_through_memory(
    make_pod: Callable[..., Container], serve: Serve
) -> None:
    """Each has network, mounts and System V IPC of its own: the socket in the volume is all that they share."""
    pod = make_pod(0o2770, own_network=True)
    server = serve(pod, "--socket-mode", "0660")
    assert pod.of(*TRAINER).run(work, "node") == Work("shm", right=True)
    assert server.end() == 0
    assert list(pod.volume.iterdir()) == []


def test_a_restarted_container_takes_over_what_a_killed_one_left(
    make_pod: Callable[..., Container], serve: Serve
) -> None:
    pod = make_pod()
    killed = serve(pod, "--socket-mode", "0660")
    assert killed.process.pid is not None
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.join(200)
    assert {path.name for path in pod.volume.iterdir()} == {"dataplane.sock", "dataplane.sock.local"}
    serve(pod, "--socket-mode", "0660")
    assert pod.of(*TRAINER).run(work, "again") == Work("shm", right=True)


@pytest.mark.parametrize(
    ("flags", "rights"),
    [((), "mode 0755"), (("--socket-mode", "0600"), "mode 0600")],
    ids=["as the umask has it", "its user's alone"],
)
def test_a_trainer_that_the_sockets_rights_keep_out_is_told_which_flag_lets_it_in(
    make_pod: Callable[..., Container], serve: Serve, flags: tuple[str, ...], rights: str
) -> None:
    pod = make_pod()
    serve(pod, *flags)
    message = refused(pod.of(*TRAINER))
    assert message.startswith("UnavailableError: server_status at unix:///run/dataplane")
    assert f"the socket has owner {SERVER_USER}:{FS_GROUP}, {rights}, and this process is uid 1000" in message
    assert "in the groups 1000, 2000: run the client as the server's user, or in its group" in message
    assert "with the server started with --socket-mode 0660" in message


def test_a_trainer_without_the_group_is_told_which_one_it_lacks(pod: Container) -> None:
    outsider = replace(pod.of(*TRAINER), fs_group=None)
    assert re.search(r"65532:2000, .*0660, .*1000", refused(outsider))


def test_a_trainer_that_may_not_enter_the_folder_is_told_so(make_pod: Callable[..., Container], serve: Serve) -> None:
    pod = make_pod(0o2770)
    serve(pod, "--socket-mode", "0660")
    outsider = replace(pod.of(*TRAINER), fs_group=None)
    assert re.search(f"{MOUNT}: .*1000", refused(outsider))


def test_a_trainer_that_does_not_reach_the_memorys_socket_goes_on_over_grpc_and_says_why(
    make_pod: Callable[..., Container], serve: Serve
) -> None:
    pod = make_pod()
    serve(pod, "--socket-mode", "0660")
    (pod.volume / "dataplane.sock.local").chmod(0o600)
    done = pod.of(*TRAINER).run(work, "grpc")
    assert done == Work("grpc", right=True)
    assert any("/run/dataplane/dataplane.sock.local: [Errno 13] Permission denied" in line for line in done.log)
    with pytest.raises(AssertionError, match=r"PreconditionError: .*Permission denied"):
        pod.of(*TRAINER).run(work, "shm", "shm")


def test_a_server_of_another_user_does_not_take_over_the_socket_of_a_living_one(pod: Container, folder: Path) -> None:
    other = ServerContainer(replace(pod, user=65533, fs_group=None), folder / "other.log")
    other.process.join(60)
    assert other.process.exitcode == 1
    assert "dataplane.sock: no permission to connect to what is there: another user's socket" in other.log
    assert pod.of(*TRAINER).run(work, "unharmed", "shm").right
