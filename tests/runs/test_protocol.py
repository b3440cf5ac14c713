import re
from pathlib import Path
from typing import Any

import pytest
import torch

from support.errors import refused
from testdg.data.benchmarks import Benchmark, load_benchmark
from testdg.data.corruptions import STANDARD_ORDER
from testdg.data.stream import Domain, LabelledImages
from testdg.models import VisionModel
from testdg.runs import Protocol, read_protocol, read_protocols, run
from testdg.runs.protocol import ORDERS, make_visits


def digits(**options: Any) -> Benchmark:
    return load_benchmark("digits-c", **{"images": 4, **options})


def test_the_ten_orders_are_permutations_of_the_fifteen() -> None:
    assert len(ORDERS) == 10
    assert all(sorted(order) == sorted(STANDARD_ORDER) for order in ORDERS)
    assert len(set(ORDERS)) == 10
    assert ORDERS[0][:3] == ("brightness", "pixelate", "gaussian_noise")
    assert ORDERS[9][-2:] == ("motion_blur", "brightness")


def test_continual_is_the_order_of_the_benchmark() -> None:
    stream = read_protocol("continual").stream(digits(), 3)
    assert [d.name for d in stream.domains] == list(STANDARD_ORDER)
    assert {(s.domain.severity, s.round, s.learn) for s in stream.segments} == {(5, 1, True)}
    assert len(stream) == 30


def test_held_out_tests_on_the_last_five() -> None:
    protocol = read_protocol("held-out")
    assert protocol.split(digits()) == (tuple(STANDARD_ORDER[:10]), tuple(STANDARD_ORDER[10:]))
    assert [segment.learn for segment in protocol.stream(digits()).segments] == [True] * 10 + [False] * 5
    with refused("too-few-domains", "held-out", 5):
        protocol.split(digits(domains=STANDARD_ORDER[:5]))


def test_leave_one_out_holds_out_each_domain_once() -> None:
    bench = digits(domains=["fog", "snow", "contrast"])
    protocol = read_protocol("leave-one-out,rounds=2")
    assert [one.split(bench) for one in protocol.expand(bench)] == [
        (("snow", "contrast"), ("fog",)), (("fog", "contrast"), ("snow",)), (("fog", "snow"), ("contrast",)),
    ]  # fmt: skip
    stream = protocol.expand(bench)[1].stream(bench, 4)
    visits = [(segment.domain.name, segment.round, segment.learn) for segment in stream.segments]
    assert visits == [(n, r, True) for r in (1, 2) for n in ("fog", "contrast")] + [("snow", 1, False)]
    with refused("several-runs", 3, "held_out=fog"):
        protocol.stream(bench)
    with refused("too-few-domains", "fog", 1):
        protocol.expand(digits(domains=["fog"]))[0].split(digits(domains=["fog"]))


def test_domains_are_held_out_by_name(tmp_path: Path) -> None:
    assert read_protocol("continual,held_out=fog").split(digits(domains=["fog", "snow"])) == (("snow",), ("fog",))
    (tmp_path / "own.toml").write_text('held_out = ["snow", "fog"]\n')
    protocol = read_protocol(tmp_path / "own.toml")
    assert protocol.split(digits(domains=["fog", "snow", "contrast"])) == (("contrast",), ("snow", "fog"))
    with refused("unknown-domain", "snow", "contrast, fog"):
        protocol.split(digits(domains=["fog", "contrast"]))
    assert protocol.expand(digits()) == [protocol]


def test_gradual_has_131_visits_and_starts_hard() -> None:
    segments = read_protocol("gradual").stream(digits()).segments
    assert len(segments) == 131
    assert [s.domain.name for s in segments[:5]] == ["brightness"] * 5
    assert [s.domain.severity for s in segments[:5]] == [5, 4, 3, 2, 1]
    for place, name in enumerate(ORDERS[0][1:]):
        mine = segments[5 + 9 * place : 14 + 9 * place]
        assert {s.domain.name for s in mine} == {name}
        assert [s.domain.severity for s in mine] == [1, 2, 3, 4, 5, 4, 3, 2, 1]


def test_an_order_keeps_the_chosen_domains() -> None:
    few = digits(domains=["fog", "contrast", "pixelate"])
    assert read_protocol("order-0").split(few)[0] == ("pixelate", "fog", "contrast")
    assert read_protocol("gradual,order=9").split(few)[0] == ("contrast", "fog", "pixelate")
    with refused("wrong-order", "order 3", "spatter"):
        read_protocol("order-3").split(digits(domains=["fog", "spatter"]))


def test_orders_are_ten_protocols() -> None:
    assert [(protocol.name, protocol.order) for protocol in read_protocols("orders")] == [
        (f"order-{k}", k) for k in range(10)
    ]
    assert [(protocol.name, protocol.severity, protocol.order) for protocol in read_protocols("gradual,order=all")] == [
        ("gradual", "gradual", k) for k in range(10)
    ]
    with refused("several-runs", "orders", 10, "order=0"):
        read_protocol("orders")


def test_visits_of_a_combination() -> None:
    visits = make_visits(["a", "b"], ["c"], (1, 3), 2)
    assert [(v.name, v.severity, v.round) for v in visits if v.learn] == [
        ("a", 1, 1), ("a", 3, 1), ("b", 1, 1), ("b", 3, 1), ("a", 1, 2), ("a", 3, 2), ("b", 1, 2), ("b", 3, 2),
    ]  # fmt: skip
    assert [(v.name, v.severity, v.round) for v in visits if not v.learn] == [("c", 1, 1), ("c", 3, 1)]
    later = make_visits(["a"], [], "gradual", 2)[5:]
    assert [v.severity for v in later] == [1, 2, 3, 4, 5, 4, 3, 2, 1]  # only the stream's first domain starts hard


def test_options_follow_a_name() -> None:
    assert read_protocol("cyclic").rounds == 3
    assert read_protocol("cyclic,rounds=7, resets=domain") == Protocol(name="cyclic", rounds=7, resets="domain")
    assert read_protocol("dirichlet,concentration=1,seed=4") == Protocol(
        name="dirichlet", sampling="dirichlet", concentration=1, seed=4
    )


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("gradul", "unknown-protocol", ("gradul", "'gradual'")),
        ("heldout", "unknown-protocol", ("heldout", "'held-out'")),
        ("cyclic,3", "wrong-option", ("'3'",)),
        ("cyclic,round=3", "wrong-protocol", ("'round'", "'rounds'")),
        ("cyclic,rounds=0", "wrong-protocol", ("rounds", "1 to 10000", "got 0")),
        ("cyclic,rounds=1.5", "wrong-protocol", ("rounds", "got 1.5")),
        ("gradual,order=12", "wrong-protocol", ("order", "0 to 9", "got 12")),
        ("dirichlet,concentration=0", "wrong-protocol", ("concentration", "1e-06", "got 0")),
        ("dirichlet,concentration=nan", "wrong-protocol", ("concentration", "got nan")),
        ("continual,concentration=2", "wrong-protocol", ("concentration", "dirichlet", "file")),
        ("continual,seed=2", "wrong-protocol", ("seed", "mixed or dirichlet", "file")),
        ("continual,sampling=sorted,seed=1", "wrong-protocol", ("seed", "mixed or dirichlet", "sorted")),
        ("mixed,resets=domain", "wrong-protocol", ("resets", "mixed")),
        ("mixed,severity=gradual", "wrong-protocol", ("gradual severities", "mixed")),
        ("held-out,resets=domain", "wrong-protocol", ("held_out", "resets = domain")),
        ("continual,then=adapt", "wrong-protocol", ("then = adapt",)),
        ("leave-one-out,then=adapt", "wrong-protocol", ("then = adapt",)),
        ("mixed,held_out=1,then=adapt", "wrong-protocol", ("then = adapt",)),
        ("nowhere.toml", "unreadable-file", ("nowhere.toml",)),
    ],
)
def test_mistakes_are_refused(text: str, code: str, values: tuple[str, ...]) -> None:
    with refused(code, *values):
        read_protocols(text)


def test_all_mistakes_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('rounds = 0\nseverity = [6]\nsamplin = "mixed"\nname = ""\n')
    with refused("wrong-protocol", path, "'samplin'", "'sampling'", "name", "got ''", "severity", "got 6", "rounds"):
        read_protocols(path)
    path.write_text("rounds = [")
    with refused("damaged-file", path):
        read_protocols(path)


def test_a_protocol_made_in_python_is_checked() -> None:
    with refused("wrong-protocol", "continual", "rounds", -1):
        Protocol(rounds=-1)
    with refused("wrong-protocol", "order all"):
        Protocol(order="all")  # type: ignore[arg-type]


def test_severities_are_chosen_in_one_place() -> None:
    with refused("option-conflict", "gradual", "--severity"):
        read_protocol("gradual").stream(digits(severity=3))


class Weather(Benchmark):
    """Two domains without severities."""

    name = "weather"
    order = ("day", "night")

    def make_domain(self, name: str, severity: int) -> Domain:
        return Domain(name, 0, self.test(), self.test().labels)

    def train(self) -> LabelledImages:
        return self.test()

    def test(self) -> LabelledImages:
        return LabelledImages(torch.zeros(3, 3, 2, 2, dtype=torch.uint8), torch.arange(3))

    def origin(self) -> str:
        return "made for a test"

    def fingerprint(self) -> str:
        return "0" * 12


def test_a_benchmark_without_severities_is_not_gradual() -> None:
    with refused("no-severities", "gradual", "weather"):
        read_protocol("gradual").stream(Weather())
    with refused("wrong-order", "order 0", "day"):
        read_protocol("order-0").stream(Weather())
    protocol = read_protocol("cyclic")
    assert protocol.levels(Weather()) is None
    assert [(s.domain.name, s.round) for s in protocol.stream(Weather()).segments] == [
        (name, number) for number in (1, 2, 3) for name in ("day", "night")
    ]


def test_class_order_needs_one_label_per_image(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = digits()
    monkeypatch.setattr(type(benchmark), "task", "segmentation")
    with refused("wrong-task", "dirichlet", "digits-c", "segmentation"):
        read_protocol("dirichlet").stream(benchmark)


def test_a_protocol_that_names_its_domains(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('order = ["spatter", "fog"]')
    protocol, benchmark = read_protocol(path), digits()
    assert protocol.name == "own"
    chosen = protocol.choose(benchmark)
    assert [d.name for d in protocol.stream(chosen).domains] == ["spatter", "fog"]
    assert benchmark.options.domains is None
    with refused("option-conflict", "own", "--domains"):
        protocol.choose(digits(domains=["fog"]))
    path.write_text('order = ["fogg"]')
    with refused("unknown-corruption", "fogg", "'fog'"):
        read_protocol(path).stream(read_protocol(path).choose(benchmark))


def test_the_example_of_the_documents_runs(model: VisionModel, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "protocols.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "own.toml").write_text(example)
    result = run("digits-c", "tent", model=model, protocol=tmp_path / "own.toml", out=tmp_path, images=6, batch_size=5)
    protocol = result.record
    assert protocol["kind"] == "weather-twice"
    assert protocol["domains"] == ["snow", "frost", "fog"]
    assert (protocol["severity"], protocol["rounds"], protocol["held_out"]) == ([1, 3, 5], 2, ["brightness"])
    assert (protocol["sampling"], protocol["concentration"], protocol["sampling_seed"]) == ("dirichlet", 0.5, 1)
    assert len(result.domains) == 3 * 3 * 2
    assert result.held_out is not None
    assert [(d.name, d.severity) for d in result.held_out] == [("brightness", s) for s in (1, 3, 5)]


def test_a_test_in_the_middle_precedes_its_domains() -> None:
    protocol = read_protocol("continual,held_out=2,then=adapt")
    chosen = digits(domains=["fog", "snow", "contrast"])
    assert protocol.split(chosen) == (("fog", "snow", "contrast"), ("snow", "contrast"))
    visits = make_visits(*protocol.split(chosen), 5, 1)
    assert [(visit.name, visit.learn) for visit in visits] == [
        ("fog", True), ("snow", False), ("contrast", False), ("snow", True), ("contrast", True),
    ]  # fmt: skip


def test_sorted_images_come_class_by_class() -> None:
    stream = read_protocol("continual,sampling=sorted").stream(digits(domains=["fog"], images=50), 10)
    labels = [label for batch in stream.batches() for label in batch.labels.tolist()]
    assert labels == sorted(labels)
