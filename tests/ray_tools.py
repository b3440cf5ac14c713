"""A real Ray cluster for tests."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from testdg.studies import ray as ray_cluster

NODE = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80 * 2**20, "include_dashboard": False}
NOTICE = {  # a lost node is noticed soon
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3,
}  # fmt: skip


def need_ray() -> None:
    """Skip a test where Ray is not installed; where TESTDG_NEEDS_RAY is set, that is a failure."""
    if os.environ.get("TESTDG_NEEDS_RAY"):
        importlib.import_module("ray")
    else:
        pytest.importorskip("ray", reason="Ray is not installed (pip install 'testdg[ray]')")


@contextmanager
def real_cluster(cache: Path) -> Iterator[Any]:
    """A cluster of one node; its processes keep what they unpack in a folder of their own."""
    need_ray()
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESTDG_CACHE", str(cache))
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")  # other processes of the test run may need much memory
        patch.setenv("RAY_worker_niceness", "0")  # next to them, nice processes would hardly run
        patch.setattr(ray_cluster, "ANSWER_TIMEOUT", 120.0)
        found = Cluster(initialize_head=True, head_node_args={**NODE, "_system_config": NOTICE})
        yield found
        found.shutdown()
