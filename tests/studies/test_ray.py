"""Runs on a real Ray cluster of two nodes, one of which is killed; and clusters that do not answer."""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from ray_tools import NODE, need_ray
from support.errors import refused
from testdg.runs import read_result, run
from testdg.runs.folder import read_events
from testdg.studies import Complete, Grid, News, Ray, Running, bench, expand
from testdg.studies import ray as ray_cluster
from testdg.studies.engine import run_one
from testdg.studies.ray import check_address


@pytest.fixture
def values(model: Path) -> dict[str, Any]:
    return {"method": "tent", "model": str(model), "device": "cpu", "images": 6, "domains": ["fog", "contrast"]}


class Killer:
    """Kills the second node while a run is under way on each; the other node has to do the rest.

    Both runs must be in their first two thirds: two that are out of step are never both in their first half.
    """

    def __init__(self, cluster: Any, batches: int) -> None:
        self.cluster, self.batches, self.node = cluster, batches, cluster.add_node(**NODE)
        self.begun: list[int] = []
        self.running: dict[int, int] = {}
        self.written: dict[int, int] = {}

    def notify(self, news: News) -> None:
        """Record which runs begin and end, and kill the node once."""
        if isinstance(news, Running):
            if news.done <= self.running.get(news.number, news.done):
                self.begun.append(news.number)
            self.running[news.number] = news.done
            if len(self.running) == 2 and all(0 < 3 * done < 2 * self.batches for done in self.running.values()):
                self.strike()
        elif isinstance(news, Complete):
            del self.running[news.number]
            self.written[news.number] = (news.result.folder / "result.json").stat().st_mtime_ns

    def strike(self) -> None:
        if self.node is not None:
            self.struck = set(self.running)
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = None


@pytest.mark.slow
def test_a_killed_node_costs_only_time(cluster: Any, values: dict[str, Any], tmp_path: Path) -> None:
    long = {"images": 200, "batch_size": 1, "domains": ["fog", "contrast", "snow"], "seeds": [0, 1, 2, 3]}
    specs = expand(Grid({**values, **long}))
    engine = Ray(cluster.address)  # first: of two nodes, it may connect to the one that is to be killed
    killer = Killer(cluster, specs[0].batches)
    ends = bench(specs, tmp_path, engine=engine, notify=killer.notify)
    assert killer.node is None
    assert [type(end) for end in ends] == [Complete] * 5
    (lost,) = (number for number in range(5) if killer.begun.count(number) == 2)  # one run started again, and no other
    assert lost in killer.struck
    assert sorted(killer.begun) == sorted([*range(5), lost])
    folders = {end.number: end.result.folder for end in ends if isinstance(end, Complete)}
    assert sorted(folders.values()) == sorted(tmp_path.iterdir())
    for number, folder in folders.items():
        assert (folder / "result.json").stat().st_mtime_ns == killer.written[number]  # written once
        assert [event["batch"] for event in read_events(folder)] == list(range(600))
    adapted = [read_result(folders[number]).domains for number in range(1, 5)]
    assert all(domains == adapted[0] for domains in adapted)  # TENT draws no random numbers: lost or not, the same
    alone = run_one(lost, specs[lost], tmp_path / "alone", lambda _: None)  # in this process, and nobody is lost
    assert isinstance(alone, Complete)
    assert alone.result.domains == read_result(folders[lost]).domains


@pytest.mark.slow
def test_an_interrupted_bench_resumes_behind_a_url(
    cluster: Any, values: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    specs, place = expand(Grid({**values, "images": 150, "batch_size": 1})), tmp_path / "shared"

    def interrupt(news: News) -> None:
        if isinstance(news, Complete):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench(specs, place.as_uri(), engine=Ray(cluster.address), notify=interrupt)
    (written,) = [path.stat().st_mtime_ns for path in place.glob("*/result.json")]
    news: list[News] = []
    ends = bench(specs, place.as_uri(), engine=Ray(cluster.address), notify=news.append)
    assert [type(end) for end in ends] == [Complete, Complete]
    done = [one.done for one in news if isinstance(one, Running)]
    assert done[:2] == [300, 0]  # the first was read back, the second begins
    assert written in {path.stat().st_mtime_ns for path in place.glob("*/result.json")}
    options: dict[str, Any] = {"images": 150, "domains": ["fog", "contrast"], "batch_size": 1}
    alone = run("digits-c", "tent", model=model, device="cpu", out=tmp_path / "alone", **options)
    assert isinstance(ends[1], Complete)
    assert ends[1].result.folder.name == alone.folder.name  # the model kept its name on its way
    assert ends[1].result.domains == alone.domains
    assert {path.name for path in place.iterdir()} == {end.result.folder.name for end in ends}  # type: ignore[union-attr]


@pytest.mark.slow
def test_the_share_of_a_gpu_must_exist(cluster: Any) -> None:
    with refused("too-few-machines", "0.5"):
        Ray(cluster.address, gpus=0.5)
    found = Ray(cluster.address, jobs=4)
    assert (found.gpus, found.jobs) == (0.0, 1)
    found.close()


@pytest.mark.parametrize(
    ("values", "code"), [({"jobs": 0}, "wrong-jobs"), ({"gpus": 1.5}, "wrong-value"), ({"gpus": -1}, "wrong-value")]
)
def test_values_are_checked_before_a_cluster_is_contacted(values: dict[str, Any], code: str) -> None:
    with refused(code, *values.values()):
        Ray("nowhere:1", **values)


@pytest.mark.parametrize("address", ["nowhere", "host:", ":6379", "host:port", "host:99999", "ray://host"])
def test_an_address_has_a_host_and_a_port(address: str) -> None:
    with refused("wrong-address", repr(address)):
        check_address(address)


def test_an_address_that_does_not_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    need_ray()
    monkeypatch.setattr(ray_cluster, "ANSWER_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        with refused("no-cluster", f"127.0.0.1:{port}"):
            check_address(f"127.0.0.1:{port}")
    with refused("no-cluster", f"127.0.0.1:{port}", os.strerror(111)):
        check_address(f"127.0.0.1:{port}")


def test_ray_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with refused("not-installed", "testdg[ray]"):
        Ray()
