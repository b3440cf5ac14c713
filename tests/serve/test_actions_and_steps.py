"""Concurrent actions, steps, saves and watching: the order stays, and nothing gets lost."""

import json
import random
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import pytest
import torch

from support.serving import act, digits, read, refused, send, wait_for
from testdg.models import load_model
from testdg.serve import service as service_module
from testdg.serve.api import Action
from testdg.serve.limits import Refused
from testdg.serve.pictures import DecodedPicture
from testdg.serve.service import Service
from testdg.serve.session import FROZEN, PUT_BACK, StreamSession

Start = Callable[..., Service]


def pictures(service: Service, count: int = 8) -> list[DecodedPicture]:
    return read(service, digits(count))


def taken(service: Service, stream: StreamSession) -> list:
    """Queue pictures for a stream whose lock we hold, and wait until the learner has taken them."""
    fates = service.learner.offer(stream, pictures(service), wait=True)[1]
    wait_for(lambda: len(service.learner) == 0)
    return fates


@pytest.mark.parametrize(("action", "reason"), [("reset", PUT_BACK), ("freeze", FROZEN)])
def test_a_step_in_progress_changes_nothing_after_an_action(start: Start, action: Action, reason: str) -> None:
    service = start()
    send(service, "a", digits(1), learn=False)
    with service.pool.using("a") as stream:
        with stream.lock:
            fates = taken(service, stream)
            act(service, "a", action)
        assert {fate.result(20) for fate in fates} == {(False, False, reason)}
        assert (stream.counts.steps, stream.counts.learnt) == (0, 0)


def test_concurrent_snapshots_have_different_numbers(start: Start) -> None:
    service = start()
    send(service, "a", digits(1), learn=False)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: act(service, "a", "snapshot").number, range(4)))
    assert sorted(found) == service.storage.numbers("a", "snapshots") == [1, 2, 3, 4]


def test_a_failed_snapshot_deletes_no_other_and_leaves_no_files(start: Start) -> None:
    service = start(snapshots=2)
    send(service, "a", digits(1), learn=False)
    for _ in range(2):
        act(service, "a", "snapshot")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        for action in ("snapshot", "export"):
            with refused(409, "not-written"):
                act(service, "a", action)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert service.storage.numbers("a", "snapshots") == [1, 2]
    assert service.storage.numbers("a", "exports") == []


def test_each_problem_is_reported_until_it_is_solved(start: Start) -> None:
    service = start()
    send(service, "a", digits(1), learn=False)
    log = service.storage.folder / "actions.jsonl"
    log.mkdir()  # nobody can write there
    act(service, "a", "freeze")  # saves the state, which works
    assert [problem.partition(":")[0] for problem in service.problems()] == ["actions are not being logged"]
    log.rmdir()
    act(service, "a", "freeze", "again")
    assert service.problems() == []
    assert json.loads(log.read_text())["reason"] == "again"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_thread_is_reported(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    service = start()

    def end(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(service.learner, "_learn", end)
    with service.pool.using("a", make=True) as stream:
        service.learner.offer(stream, pictures(service))
    wait_for(lambda: service.problems() == ["the learning thread has ended: restart the server"])
    assert len(send(service, "a", digits(2), learn=False)) == 2


def test_watching_neither_loads_a_stream_nor_keeps_it_in_memory(start: Start) -> None:
    service = start(resident=1)
    for name in ("a", "b"):
        send(service, name, digits(1), learn=False)
    found = service.events("a", 1)
    assert (found["state"]["on_disk"], found["state"]["in_memory"]) == (True, ["b"])
    assert service.events("b", 0)["state"]["pictures"] == 1
    with service.pool.using("b"):
        assert service.events("a", 0, load=True)["state"]["on_disk"]  # there is no room for it
    assert service.events("a", 0, load=True)["state"]["in_memory"] == ["a"]


def test_shutdown_reports_pictures_that_were_not_learnt_from(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    service = start()
    send(service, "a", digits(1), learn=False)
    monkeypatch.setattr(service_module, "_LAST_LEARNING", 0.0)
    with service.pool.using("a") as stream:
        with stream.lock:
            taken(service, stream)
            service.learner.offer(stream, pictures(service, 5))
            lost: list[str] = []
            closing = threading.Thread(target=lambda: lost.extend(service.close()))
            closing.start()
            time.sleep(0.2)
        closing.join(30)
    assert lost == ["there was no time to learn from 5 pictures"]


class Storm:
    """Clients that use a few streams in random order, not all of which fit into memory."""

    def __init__(self, service: Service, seconds: float) -> None:
        self.service, self.until = service, time.monotonic() + seconds
        self.files = digits(24, "frost")
        self.sent: Counter[str] = Counter()
        self.wrong: list[BaseException] = []
        self._lock = threading.Lock()

    def client(self, seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < self.until:
            try:
                self.turn(rng, f"s{rng.randrange(4)}")
            except Refused as found:
                if found.status not in (404, 409, 503) and found.code != "no-such-stream":
                    self.wrong.append(found)
            except BaseException as error:
                self.wrong.append(error)
                raise

    def turn(self, rng: random.Random, name: str) -> None:
        service = self.service
        if rng.random() < 0.6:
            files = rng.sample(self.files, rng.randint(1, 8))
            with service.pool.using(name, make=True):
                with self._lock:
                    self.sent[name] += len(files)
                assert len(send(service, name, files, learn=rng.random() < 0.7)) == len(files)
        elif rng.random() < 0.3:
            found = service.events(name, rng.randrange(100), load=rng.random() < 0.5)
            json.dumps(found)
        else:
            action = rng.choice(get_args(Action))
            values = {"frozen": rng.random() < 0.3} if action == "freeze" else {}
            act(service, name, action, "a storm", **values)


def test_random_concurrent_operations(start: Start) -> None:
    service = start(resident=2, save_every=0.2)
    source = {key: value.clone() for key, value in service.source.model.state_dict().items()}
    storm = Storm(service, 4)
    threads = [threading.Thread(target=storm.client, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive()
    assert storm.wrong == []
    wait_for(lambda: len(service.learner) == 0 and not any(one.users for one in service.pool.resident()))
    assert (service.decoded, service.batcher.in_flight, service.learner._bytes, service.problems()) == (0, 0, 0, [])
    assert all(torch.equal(value, source[key]) for key, value in service.source.model.state_dict().items())
    counts = {}
    for name in storm.sent:
        with service.pool.using(name) as stream:
            counts[name] = stream.counts
            assert stream.counts.failures == 0
            for number in service.storage.numbers(name, "exports"):
                load_model(service.storage.path(name) / "exports" / str(number))
    assert {name: one.pictures for name, one in counts.items()} == storm.sent
    assert service.close() == []
    again = start()
    for name, before in counts.items():
        with again.pool.using(name) as stream:
            assert stream.counts == before
            assert stream.saved.lost == ""
