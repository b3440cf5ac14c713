"""The server without HTTP: predictions, learning, memory, saving, failures."""

import json
import resource
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support.serving import act, digits, read, refused, send, wait_for
from testdg.data.benchmarks import load_benchmark
from testdg.models import load_model
from testdg.serve.service import Service
from testdg.serve.session import StreamSession

Start = Callable[..., Service]


def feed(service: Service, name: str, scene: str, batches: int, start: int = 0) -> None:
    for number in range(batches):
        send(service, name, digits(32, scene, start + 32 * number))


def weights(stream: StreamSession) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in stream.online.tensors().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in one.items())


def test_predictions_use_what_was_learnt(start: Start) -> None:
    service = start()
    files = digits(64, "frost")
    feed(service, "a", "frost", 8)
    with service.pool.using("a") as stream:
        assert stream.counts.learnt > 100
        assert stream.counts.changes >= 1
        assert any(mark.kind == "change" for mark in stream.timeline.marks)
        pictures = read(service, files)
        images = torch.stack([one.image for one in pictures]) / 255
        assert torch.allclose(stream.predict(images), stream.online.predict(images), atol=1e-4)
        answers = service.batcher.predict(stream, pictures).result(20)
    labels = load_benchmark("digits-c").test().labels[:64].tolist()
    both = [(one.class_index, one.source_class_index) for one in answers]
    right, by_source = (sum(a == b for a, b in zip(found, labels, strict=True)) for found in zip(*both, strict=True))
    assert right > by_source + 10


def test_predictions_prefer_the_classes_of_a_bunched_stream(start: Start) -> None:
    service, benchmark = start(), load_benchmark("digits-c")
    test = benchmark.test()
    threes = torch.nonzero(test.labels == 3).flatten().tolist()
    send(service, "a", digits(32))
    with service.pool.using("a") as stream:
        images = test.images[:16].float() / 255
        assert torch.allclose(stream.predict(images), stream.online.predict(images), atol=1e-4)
    for part in (threes[:24], threes[24:48]):
        send(service, "a", [file for number in part for file in digits(1, start=number)])
    with service.pool.using("a") as stream:
        shift = stream.online.adapter.stream_shift()
        assert int(shift.argmax()) == 3
        assert float(shift[3]) > 1
        plain = stream.online.predict(images)
        assert torch.allclose(stream.predict(images), plain + shift, atol=1e-4)
        act(service, "a", "freeze")  # from here on the class mix is unknown
        assert torch.allclose(stream.predict(images), plain, atol=1e-4)
        act(service, "a", "freeze", frozen=False)
        assert torch.allclose(stream.predict(images), plain + shift, atol=1e-4)
        act(service, "a", "reset")
        assert torch.allclose(stream.predict(images), stream.online.predict(images), atol=1e-4)


def test_streams_are_independent_and_leave_the_source_unchanged(start: Start) -> None:
    service = start()
    files = digits(16, "frost")
    before = {key: value.clone() for key, value in service.source.model.state_dict().items()}
    send(service, "quiet", files, learn=False)
    with service.pool.using("quiet") as quiet:
        untouched = weights(quiet)
        feed(service, "busy", "frost", 4)
        assert same(weights(quiet), untouched)
    assert same(dict(service.source.model.state_dict()), before)


def test_a_prediction_does_not_wait_for_learning(start: Start) -> None:
    service = start()
    send(service, "a", digits(8), learn=False)
    with service.pool.using("a") as stream, stream.lock:  # as if a long step were under way
        found: list[list[int]] = []
        client = threading.Thread(target=lambda: found.append(send(service, "a", digits(8), learn=False)))
        client.start()
        client.join(20)
        assert len(found[0]) == 8


def test_a_full_queue_drops_learning_and_never_predictions(start: Start) -> None:
    service = start(queue=40, queue_of_stream=40)
    send(service, "a", digits(8), learn=False)
    with service.pool.using("a") as stream, stream.lock:  # nothing is learnt
        pictures = read(service, digits(16))
        found = [service.learner.offer(stream, pictures)[0] for _ in range(8)]
        assert "dropped" in found
        assert stream.counts.dropped == 16 * found.count("dropped")
        assert len(service.batcher.predict(stream, pictures).result(20)) == 16
    wait_for(lambda: len(service.learner) == 0)


def test_a_stream_may_not_take_the_whole_queue(start: Start) -> None:
    service = start(queue=200, queue_of_stream=32)
    for name in ("a", "b"):
        send(service, name, digits(1), learn=False)
    pictures = read(service, digits(32))
    with service.pool.using("a") as a, service.pool.using("b") as b, a.lock, b.lock:
        found = [service.learner.offer(a, pictures)[0] for _ in range(5)]
        assert found.count("queued") <= 2  # one batch may be at work
        assert service.learner.offer(b, pictures)[0] == "queued"


def test_the_least_recently_used_stream_moves_to_disk_and_back(start: Start) -> None:
    service = start(resident=2)
    feed(service, "a", "frost", 4)
    with service.pool.using("a") as stream:
        saved, counts = weights(stream), stream.counts
    for name in ("b", "c"):
        send(service, name, digits(4), learn=False)
    assert sorted(stream.name for stream in service.pool.resident()) == ["b", "c"]
    with service.pool.using("a") as stream:
        assert same(weights(stream), saved)
        assert stream.counts == counts
    assert service.pool.names() == ["a", "b", "c"]
    wait_for(lambda: not any(stream.users for stream in service.pool.resident()))  # saving holds a stream, too
    with service.pool.using("a"), service.pool.using("b"), refused(503, "overloaded", 2):
        service.pool.load("c")


def test_limits_and_names(start: Start) -> None:
    service = start(streams=1, requests=1)
    send(service, "a", digits(1), learn=False)
    with refused(503, "too-many-streams", 1):
        service.pool.load("b")
    for name in ("", "..", "A", "a/b", "a" * 49, "ä", "-a", "<b>"):
        with refused(400, "stream-name"):
            service.pool.load(name)
    with service.admitted(), refused(503, "overloaded", 1), service.admitted():
        pass


def test_actions_change_the_model_and_are_logged(start: Start) -> None:
    service = start()
    send(service, "a", digits(8), learn=False)
    with refused(409, "nothing-to-roll-back", "a"):
        act(service, "a", "rollback")
    with service.pool.using("a") as stream:
        fresh = weights(stream)
        feed(service, "a", "frost", 3)
        assert act(service, "a", "snapshot", "before the night").number == 1
        saved = weights(stream)
        feed(service, "a", "fog", 3)
        assert not same(weights(stream), saved)
        act(service, "a", "rollback", "worse", to=1)
        assert same(weights(stream), saved)
        feed(service, "a", "fog", 2)
        assert act(service, "a", "rollback", to="healthy").done == "back to the last healthy state"
        act(service, "a", "reset", "a new camera")
        assert same({k: v for k, v in weights(stream).items() if "guard." not in k and "generator" not in k},
                    {k: v for k, v in fresh.items() if "guard." not in k and "generator" not in k})  # fmt: skip
        act(service, "a", "freeze")
        assert service.learner.offer(stream, [])[0] == "frozen"
        act(service, "a", "freeze", frozen=False)
        done = act(service, "a", "export", "for the others")
        assert load_model(service.storage.folder / done.folder).classes == 10
    log = [json.loads(line) for line in (service.storage.folder / "actions.jsonl").read_text().splitlines()]
    assert [one["action"] for one in log] == ["snapshot", "rollback", "rollback", "reset", "freeze", "freeze", "export"]
    assert log[0]["reason"] == "before the night"
    for _ in range(7):
        act(service, "a", "snapshot")
    assert len(service.storage.numbers("a", "snapshots")) == service.limits.snapshots


def test_shutdown_loses_nothing(start: Start, tmp_path: Path) -> None:
    service = start()
    feed(service, "a", "frost", 4)
    with service.pool.using("a") as stream:
        pictures = read(service, digits(20, "frost", 200))
        service.learner.offer(stream, pictures)  # waits in the queue
        stream.frozen = False
    service.close()
    assert len(service.learner) == 0
    again = start()
    with again.pool.using("a") as other:
        assert same(weights(other), weights(stream))
        assert other.counts == stream.counts
        assert other.saved.lost == ""
        assert {mark.text for mark in other.timeline.marks} == {mark.text for mark in stream.timeline.marks}


def test_after_a_kill_the_last_state_is_loaded_and_the_loss_reported(start: Start, tmp_path: Path) -> None:
    service = start(save_every=1000.0)
    feed(service, "a", "frost", 4)
    with service.pool.using("a") as stream:
        assert service.storage.save(stream)
        saved, learnt = weights(stream), stream.counts.learnt
        feed(service, "a", "fog", 3)
        service.storage.write_counts(service.pool.resident())
        lost = stream.counts.learnt - learnt
    shutil.copytree(service.storage.folder, tmp_path / "killed")  # what a kill leaves
    again = start(tmp_path / "killed")
    with again.pool.using("a") as other:
        assert same(weights(other), saved)
        assert f"what it learnt from {lost} pictures after" in other.saved.lost
        assert other.timeline.marks[-1].kind == "note"


def test_a_damaged_state_is_renamed(start: Start, tmp_path: Path) -> None:
    service = start()
    send(service, "a", digits(4))
    service.close()
    path = service.storage.path("a") / "state" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)
    with start().pool.using("a") as stream:
        assert "damaged" in stream.saved.lost
    assert list(service.storage.path("a").glob("damaged-*"))


def test_a_poisoned_stream_affects_no_other(start: Start) -> None:
    service = start()
    feed(service, "good", "clean", 2)
    black = digits(1, "clean")[0]
    for _ in range(4):
        send(service, "bad", [black] * 32)  # a stuck camera
    with service.pool.using("bad") as bad, bad.lock, torch.no_grad():
        bad.online.adapter.model.network.head.weight.fill_(float("nan"))
        bad.online.adapter.teacher.network.head.weight.fill_(float("nan"))
        bad.refresh()
    with refused(409, "not-finite"):
        send(service, "bad", digits(4))
    assert len(send(service, "good", digits(16))) == 16
    act(service, "bad", "reset", "poisoned")
    assert len(send(service, "bad", digits(4))) == 4


def test_a_failed_step_is_reported_and_learning_continues(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    service = start()
    feed(service, "a", "clean", 2)
    with service.pool.using("a") as stream:

        def fail(images: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("out of memory")

        monkeypatch.setattr(stream.online.adapter, "step", fail)
        feed(service, "a", "clean", 1, start=100)
        assert stream.counts.failures == 1
        assert "out of memory" in stream.timeline.marks[-1].text
    feed(service, "b", "clean", 2)
    with service.pool.using("b") as other:
        assert other.counts.learnt > 0


def test_a_full_disk_is_reported_and_the_server_continues_in_memory(start: Start) -> None:
    service = start(resident=1)
    feed(service, "a", "frost", 2)
    wait_for(lambda: "a" in service.storage.names())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))  # as good as a full disk
    try:
        feed(service, "a", "frost", 2)
        with service.pool.using("a") as stream:
            assert not service.storage.save(stream)
        (problem,) = service.problems()
        assert "not being saved" in problem
        assert str(service.storage.folder) not in problem
        assert len(send(service, "a", digits(8))) == 8
        with refused(507, "disk-full"):
            send(service, "b", digits(1))
        with refused(409, "not-written"):
            act(service, "a", "snapshot")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with service.pool.using("a") as stream:
        assert service.storage.save(stream)
    assert service.problems() == []
    assert len(send(service, "b", digits(1))) == 1


def test_a_stream_created_during_predictions_is_a_clean_copy(start: Start) -> None:
    service = start()
    send(service, "a", digits(8), learn=False)
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            send(service, "a", digits(8), learn=False)

    client = threading.Thread(target=ask)
    client.start()
    try:
        made = [service.source.fresh() for _ in range(5)]
    finally:
        over.set()
        client.join(60)
    hooks = [hook for one in made for layer in one.adapter.model.modules() for hook in layer._forward_hooks.values()]
    assert [hook for hook in hooks if "watching" in hook.__qualname__] == []
