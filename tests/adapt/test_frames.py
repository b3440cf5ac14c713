"""Pictures come in order from folders, lists, pipes and videos."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.errors import refused
from testdg.data.frames import Frames, NamedPicture, PictureFolder, PictureList, RemainingPictures, open_frames


def files(frames: Frames) -> list[str]:
    return [frame.file for frame in frames if frame is not None]


def touch(path: Path, *names: str) -> None:
    for number, name in enumerate(names):
        (path / name).parent.mkdir(exist_ok=True, parents=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(path / name)


def test_a_folder_is_in_the_order_of_names_or_of_time(tmp_path: Path) -> None:
    touch(tmp_path, "b/f10.png", "b/f9.png", "a/f11.jpg", "c.png", ".hidden.png", ".git/x.png", "out/1.png")
    (tmp_path / "notes.txt").write_text("not a picture")
    for number, name in enumerate(["c.png", "b/f10.png", "a/f11.jpg", "b/f9.png"]):
        os.utime(tmp_path / name, (1000 + number, 1000 + number))
    assert files(PictureFolder(tmp_path, without=tmp_path / "out")) == ["a/f11.jpg", "b/f9.png", "b/f10.png", "c.png"]
    timed = PictureFolder(tmp_path, "time", without=tmp_path / "out")
    assert files(timed) == ["c.png", "b/f10.png", "a/f11.jpg", "b/f9.png"]
    assert timed.total == 4


def test_a_list_names_pictures_next_to_it_or_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "lists/a.png", "here/b.png")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lists" / "all.txt").write_text("a.png\r\n\nhere/b.png\na.png\n")
    found = list(open_frames(tmp_path / "lists" / "all.txt"))
    assert [frame.file for frame in found if frame] == ["a.png", "here/b.png", "a.png"]
    assert all(frame is not None and Path(frame.picture).is_file() for frame in found)


@pytest.mark.parametrize(
    ("name", "code"),
    [("none", "no-such-file"), ("empty", "no-images"), ("empty.txt", "empty-list"), ("bad.txt", "unreadable-list")],
)
def test_a_source_without_pictures_is_refused(tmp_path: Path, name: str, code: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\0")
    with refused(code, tmp_path / name):
        open_frames(tmp_path / name)


def test_a_growing_folder_gives_pictures_once_they_are_complete(tmp_path: Path) -> None:
    touch(tmp_path, "0.png")
    whole = (tmp_path / "0.png").read_bytes()

    def grow() -> None:
        time.sleep(0.3)
        half = tmp_path / "1.png"
        for size in (20, 40, len(whole)):  # written slowly
            half.write_bytes(whole[:size])
            time.sleep(0.4)

    writer = threading.Thread(target=grow)
    writer.start()
    seen = []
    for frame in PictureFolder(tmp_path, follow=True, idle=2.0):
        if frame is not None:
            seen.append((frame.file, Path(frame.picture).stat().st_size))
    writer.join()
    assert seen == [("0.png", len(whole)), ("1.png", len(whole))]


def test_what_is_done_is_left_out_as_often_as_it_was_done(tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text("a\nb\na\nc\na\n")
    left = RemainingPictures(PictureList(tmp_path / "all.txt"), ["a", "b"], ["a"])
    assert files(left) == ["a", "c", "a"]


def make_video(path: Path, count: int, noise: int = 0) -> None:
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 64, 48, "yuv420p", 5
        for number in range(count):
            pixels = np.full((48, 64, 3), 8 * number, np.uint8)
            pixels += np.random.default_rng(number).integers(0, noise + 1, pixels.shape, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def test_a_video_gives_its_frames(tmp_path: Path) -> None:
    make_video(tmp_path / "v.mp4", 20)
    video = open_frames(tmp_path / "v.mp4")
    found = [frame for frame in video if isinstance(frame, NamedPicture)]
    assert [frame.file for frame in found] == [f"v.mp4#{number:06}" for number in range(20)]
    assert video.total == 20
    assert video.remarks() == []
    for number, frame in enumerate(found):
        assert frame.picture.shape == (48, 64, 3)
        assert abs(float(frame.picture.mean()) - 8 * number) < 6


def test_a_video_that_ends_early_is_reported(tmp_path: Path) -> None:
    make_video(tmp_path / "v.avi", 30, noise=15)
    data = (tmp_path / "v.avi").read_bytes()
    (tmp_path / "v.avi").write_bytes(data[: int(0.6 * len(data))])
    video = open_frames(tmp_path / "v.avi")
    count = len(files(video))
    assert 0 < count < 30
    assert any("ends early" in remark or "damaged" in remark for remark in video.remarks())


def test_a_file_that_is_not_a_video_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("av")
    (tmp_path / "v.mp4").write_bytes(b"not a video")
    with refused("unreadable-video", tmp_path / "v.mp4"):
        open_frames(tmp_path / "v.mp4")
