"""A Ray cluster: reached or made, asked for its room, and left; with a mailbox for news from its processes."""

from __future__ import annotations

import logging
import math
import os
import socket
import subprocess
import sys
from typing import Any

from testdg import registry
from testdg.errors import UserError

RETRIES = 3  # work begins anew when its machine or its process is lost
KNOCK, ANSWER = 3.0, 15.0  # seconds for an address to accept a connection, and for the cluster to answer
PATIENCE = 120.0  # seconds for the lock of a lost machine to end
TICK = 0.2  # seconds between two looks for news
# What torch reads when it is imported, and plugins.
_PASSED_ON = ("OMP_WAIT_POLICY", "ONEDNN_MAX_CPU_ISA", registry.VARIABLE)
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}


class Cluster:
    """The Ray cluster of `address`, of RAY_ADDRESS, or a new one on this machine."""

    def __init__(self, address: str | None = None) -> None:
        self.address = address or os.environ.get("RAY_ADDRESS") or "local"
        self.ray = import_ray()
        self._ours = False
        self.connect()

    def connect(self) -> None:
        """Reach the cluster, unless this process is in one already."""
        if self.ray.is_initialized():
            return
        options: dict[str, Any] = dict(_QUIET)
        if self.address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            options["include_dashboard"] = False
        else:
            knock(self.address)
        passed_on = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        self.ray.init(address=self.address, runtime_env={"env_vars": passed_on}, **options)
        self._ours = True

    def close(self) -> None:
        """Leave the cluster, and end it if it was made for this."""
        if self._ours:
            self.ray.shutdown()
            self._ours = False

    def nodes(self) -> list[tuple[float, float]]:
        """Cores and GPUs of every machine."""
        alive = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return [(resources.get("CPU", 0.0), resources.get("GPU", 0.0)) for resources in alive]

    def room(self, cpus: float, gpus: float) -> int:
        """How often these shares of cores and GPUs are there at the same time."""
        found = (min(cores / cpus, most / gpus if gpus else math.inf) for cores, most in self.nodes())
        return sum(math.floor(number + 1e-6) for number in found)

    def choose_gpus(self, wanted: float | None, option: str, jobs: int = 1) -> float:
        """The share of a GPU that was asked for, if a machine has it; else one `jobs`-th, where there are GPUs."""
        most = max(gpus for _, gpus in self.nodes())
        if wanted is None:
            return math.floor(1e4 / jobs) / 1e4 if most else 0.0  # Ray counts in steps of 0.0001
        if wanted > most:
            told = f"no machine of the cluster has {wanted:g} GPUs, the most is {most:g}"
            raise UserError(f"{told}: use less {option}", code="too-few-machines")
        return wanted

    def mailbox(self) -> Any:
        """An actor for news, beside this process: other machines may get lost."""
        strategies = self.ray.util.scheduling_strategies
        here = strategies.NodeAffinitySchedulingStrategy(self.ray.get_runtime_context().get_node_id(), soft=False)
        return self.ray.remote(_Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()


class _Mailbox:
    """Keeps news until they are fetched."""

    def __init__(self) -> None:
        self.news: list[Any] = []

    def put(self, news: Any) -> None:
        """Keep some news."""
        self.news.append(news)

    def empty(self) -> list[Any]:
        """Give all news since the last time."""
        news, self.news = self.news, []
        return news


def import_ray() -> Any:
    """Ray, if it is installed."""
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise UserError("Ray is not installed: pip install 'testdg[ray]'", code="not-installed") from error
    return ray


def knock(address: str) -> None:
    """Refuse an address where no cluster answers; Ray itself would wait for minutes."""
    remedy = "start one there with `ray start --head`, or leave out --address"
    if address != "auto":
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if not (host and colon and port.isdecimal() and int(port) < 1 << 16):
            message = f"a Ray address is HOST:PORT, ray://HOST:PORT or auto; got {address!r}"
            raise UserError(message, code="wrong-address")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK).close()
        except OSError as error:
            message = f"no Ray cluster answers at {address} ({error.strerror or error}): {remedy}"
            raise UserError(message, code="no-cluster") from error
    script = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False)"
    try:
        subprocess.run([sys.executable, "-c", script, address], timeout=ANSWER, capture_output=True, check=True)
    except subprocess.TimeoutExpired as error:
        message = f"no Ray cluster answers at {address} within {ANSWER:.0f} seconds: {remedy}"
        raise UserError(message, code="no-cluster") from error
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        message = f"the Ray cluster at {address} cannot be used: {' '.join(reason)}; {remedy}"
        raise UserError(message, code="no-cluster") from error
