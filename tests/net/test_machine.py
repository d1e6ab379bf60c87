"""What is found on a machine, below roots that are made here."""

import contextlib
import os
import socket
from pathlib import Path

import pytest

from llmgw.core.address import Address
from llmgw.errors import RefusedError
from llmgw.net.machine import (
    InterfaceAddress,
    ModelFile,
    addresses,
    ephemeral_ports,
    find_models,
    find_models_in_time,
    free_address,
    gpus_of_the_driver,
    listening_ports,
    model_folders,
    write_new,
)

IF_INET6 = """\
00000000000000000000000000000001 01 80 10 80       lo
fe800000000000000042acfffe110002 02 40 20 80     eth0
20010db8000000000000000000000005 02 40 00 80     eth0
"""

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1B9E 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0
   1: 0100007F:1B9F 0100007F:9000 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0
"""


def proc_with(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def gguf(file: Path, size: int = 10) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"GGUF" + b"x" * (size - 4))
    return file


def test_addresses_that_others_reach(tmp_path: Path) -> None:
    """Neither loopback nor those of a single link; each is really this machine's."""
    found = addresses(proc_with(tmp_path, {"net/if_inet6": IF_INET6}))
    assert found[-1] == InterfaceAddress("2001:db8::5", "eth0")
    assert str(found[-1]) == "2001:db8::5 (eth0)"
    for address in found[:-1]:
        assert not address.host.startswith("127.")
        with socket.socket() as test:
            test.bind((address.host, 0))


def test_a_machine_without_ipv6(tmp_path: Path) -> None:
    assert all("." in address.host for address in addresses(tmp_path))


def test_the_first_free_port() -> None:
    with contextlib.ExitStack() as stack:
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        found = free_address("127.0.0.1", taken)
        assert found.port != taken
        assert free_address("127.0.0.1", found.port) == found
        assert free_address("127.0.0.1", found.port, [found.port]) != found
    assert free_address("127.0.0.1", taken) == Address("127.0.0.1", taken)


def test_where_nothing_is_free_the_usual_port_is_left() -> None:
    """An address that is not ours cannot be listened on at any port: whoever starts there is told."""
    assert free_address("192.0.2.1", 7070) == Address("192.0.2.1", 7070)


def test_ports_that_are_listened_on(tmp_path: Path) -> None:
    assert listening_ports(proc_with(tmp_path, {"net/tcp": TCP})) == (7070,)
    assert listening_ports(tmp_path / "none") == ()


def test_the_kernel_s_own_ports(tmp_path: Path) -> None:
    proc = proc_with(tmp_path, {"sys/net/ipv4/ip_local_port_range": "15000\t30000\n"})
    assert ephemeral_ports(proc) == (15000, 30000)
    assert ephemeral_ports(tmp_path / "none") == (32768, 60999)


def test_folders_where_models_are(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for folder in ("mine", "home/models", "home/.cache/huggingface/hub"):
        (tmp_path / folder).mkdir(parents=True)
    found = model_folders([tmp_path / "mine", tmp_path / "not there", tmp_path / "mine"], home)
    assert found[:3] == (tmp_path / "mine", home / "models", home / ".cache/huggingface/hub")
    assert model_folders([], None) == tuple(folder for folder in found[3:])


def test_models_are_found_by_what_they_begin_with(tmp_path: Path) -> None:
    big = gguf(tmp_path / "Qwen2.5-7B-Q4_K_M.gguf", 100)
    small = gguf(tmp_path / "a/b/c/small.gguf", 50)
    gguf(tmp_path / "a/b/c/d/too-deep.gguf")
    gguf(tmp_path / "mmproj-model.gguf")
    (tmp_path / "text.gguf").write_text("no model")
    (tmp_path / "folder.gguf").mkdir()
    (tmp_path / "dead.gguf").symlink_to("nowhere")
    assert find_models([tmp_path]) == (ModelFile(small, 50), ModelFile(big, 100))
    assert find_models([tmp_path])[1].name == "Qwen2.5-7B-Q4_K_M"


def test_a_file_is_found_once(tmp_path: Path) -> None:
    """A hub's cache links to it, links to folders go in circles, and two folders lie in each other."""
    blob = gguf(tmp_path / "blobs/abc")
    (tmp_path / "snapshots").mkdir()
    link = tmp_path / "snapshots/model.gguf"
    link.symlink_to(blob)
    (tmp_path / "snapshots/circle").symlink_to(tmp_path)
    assert [model.path for model in find_models([tmp_path, tmp_path / "snapshots"])] == [link]


def test_a_split_model_is_one(tmp_path: Path) -> None:
    for part in (1, 2, 3):
        gguf(tmp_path / f"big-0000{part}-of-00003.gguf")
    (model,) = find_models([tmp_path])
    assert model.path.name == "big-00001-of-00003.gguf"
    assert model.name == "big"
    assert ModelFile(Path("/one-of-us.gguf"), 1).name == "one-of-us"


def test_the_search_has_an_end(tmp_path: Path) -> None:
    for number in range(10):
        gguf(tmp_path / f"{number}.gguf")
    assert len(find_models([tmp_path, tmp_path], entries_max=4)) == 4


def test_names_that_no_file_of_ours_could_hold_are_left_out(tmp_path: Path) -> None:
    gguf(tmp_path / "line\nbreak.gguf")
    gguf(Path(os.fsdecode(bytes(tmp_path) + b"/\xff.gguf")))
    assert find_models([tmp_path]) == ()


async def test_a_search_that_hangs_is_given_up(tmp_path: Path) -> None:
    gguf(tmp_path / "a.gguf")
    models, reason = await find_models_in_time([tmp_path], 60)
    assert ([model.name for model in models], reason) == (["a"], "")
    assert await find_models_in_time([tmp_path], 0) == ((), f"looking for models in {tmp_path} took more than 0 s")


def test_gpus_that_the_driver_lists(tmp_path: Path) -> None:
    assert gpus_of_the_driver(tmp_path) == 0
    (tmp_path / "driver/nvidia/gpus/0000:65:00.0").mkdir(parents=True)
    assert gpus_of_the_driver(tmp_path) == 1


def test_a_file_is_written_once(tmp_path: Path) -> None:
    file = tmp_path / "a/b/node.toml"
    write_new(file, "one")
    with pytest.raises(RefusedError, match="exists already, and is left as it is: name another folder"):
        write_new(file, "two")
    assert file.read_text() == "one"


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RefusedError, match=r"the folder .*/file/x cannot be made: Not a directory"):
        write_new(tmp_path / "file/x/node.toml", "x")
    with pytest.raises(RefusedError, match=r"the folder .*/file cannot be made: File exists"):
        write_new(tmp_path / "file/node.toml", "x")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="cannot be written: File name too long"):
        write_new(tmp_path / ("x" * 300), "x")
