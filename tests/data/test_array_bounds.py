"""Arrays from strangers: what they announce is looked at before it is believed."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from support.errors import refused
from testdg.data.cifar import open_array, read_archive

READ = """
import resource, sys
from pathlib import Path
from testdg.data.cifar import read_archive
from testdg.errors import UserError
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
try:
    read_archive(Path(sys.argv[1]), "test", 10)
except UserError as error:
    print(error)
status = Path("/proc/self/status")  # of this process alone; ru_maxrss begins with that of its parent
lines = status.read_text().splitlines() if status.exists() else []
print(next((line.split()[1] for line in lines if line.startswith("VmHWM")), 0), file=sys.stderr)
"""


def header(shape: str, kind: str = "|u1") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def write_archive(path: Path, content: bytes, zeros: int = 0) -> Path:
    """An archive with one array; many zeros take little room."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x_test.npy", "w") as file:
        file.write(content)
        for _ in range(zeros >> 20):
            file.write(bytes(1 << 20))
    return path


def test_an_array_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "cifar10.npz", header("(524288, 32, 32, 3)"), 3 << 29)
    assert path.stat().st_size < 2 << 20
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, timeout=120)
    assert "x_test unpacks to 1610612864 bytes, more than 268435456: make it again" in done.stdout, done.stderr
    assert int(done.stderr) << 10 < 1 << 30


@pytest.mark.parametrize("shape", ["(9999999, 32, 32, 3)", "(-1, -1)", f"({2**62}, {2**62})"])
def test_an_array_that_announces_more_than_it_has_is_refused(tmp_path: Path, shape: str) -> None:
    path = write_archive(tmp_path / "cifar10.npz", header(shape) + bytes(64))
    with refused("damaged-file", "cifar10.npz", 192):
        read_archive(path, "test", 10)


def test_objects_in_an_archive_are_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "cifar10.npz", header("(1,)", "|O") + bytes(64))
    with refused("damaged-file"):
        read_archive(path, "test", 10)


def test_an_archive_in_place_of_an_array_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "fog.npy.npz", x=np.zeros(3))
    (tmp_path / "fog.npy.npz").rename(tmp_path / "fog.npy")
    with refused("damaged-file", "fog.npy"):
        open_array(tmp_path / "fog.npy")


@pytest.mark.parametrize("name", ["labels.npy", "cifar10.npz"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with refused("damaged-file"):
        open_array(tmp_path / name) if name == "labels.npy" else read_archive(tmp_path / name, "test", 10)
