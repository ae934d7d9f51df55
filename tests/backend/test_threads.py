"""Threads: as many as there is room for, asleep when there is nothing to do, never in a forked child."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.steps import advance, make_sequences, step_of
from tests.reference.tiny import make_tensors, random_weights, tiny_spec
from unspool.backend import threads as threads_module
from unspool.backend.cpu import CpuBackend
from unspool.backend.threads import default_threads, shared_pool
from unspool.errors import BackendError, ParameterError, shown
from unspool.model.tensor import TensorType


def make(threads: int) -> CpuBackend:
    backend = CpuBackend(
        tiny_spec(), make_tensors(random_weights(tiny_spec()), TensorType.Q8_0), threads=threads
    )
    backend.allocate(32)
    return backend


def test_the_default_respects_the_affinity_mask() -> None:
    allowed = os.sched_getaffinity(0)
    assert 1 <= default_threads() <= len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert default_threads() == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    ("files", "quotas"),
    [
        ({"a/b/cpu.max": "150000 100000"}, [1]),
        ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000"}, [4]),
        ({"a/b/cpu.max": "5000 100000"}, [1]),
        ({"a/b/cpu.max": "nonsense"}, []),
        ({"a/b/cpu.cfs_quota_us": "300000", "a/b/cpu.cfs_period_us": "100000"}, [3]),
        ({"a/b/cpu.cfs_quota_us": "-1", "a/b/cpu.cfs_period_us": "100000"}, []),
        ({}, []),
    ],
)
def test_a_cgroup_quota_counts_wherever_on_the_path_it_is_set(
    tmp_path: Path, files: dict[str, str], quotas: list[int]
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    membership = tmp_path / "membership"
    membership.write_text("0::/a/b\n")
    assert threads_module._cgroup_quotas(membership, tmp_path) == quotas


@pytest.mark.parametrize("bad", [0, -1, 257, True, 1.0, "1", 10**5000, -(10**5000)], ids=shown)
def test_a_number_of_threads_that_cannot_be_is_refused(bad: Any) -> None:
    with pytest.raises(ParameterError, match="threads must be a whole number from 1 to 256"):
        shared_pool(bad)
    assert shared_pool(np.int64(1)) is shared_pool(1)


def test_backends_share_one_pool() -> None:
    assert shared_pool(2) is shared_pool(2)
    assert make(2).threads == 2


def test_idle_workers_sleep() -> None:
    """Processor time of the whole process while nothing is asked of a pool of four."""
    backend = make(4)
    (branch,) = make_sequences([8], tiny_spec().vocab_size)
    advance(backend, [(branch, 8)])
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1


def test_python_threads_that_step_at_once_get_what_each_would_alone() -> None:
    backends = [make(2) for _ in range(4)]
    branches = [make_sequences([60], tiny_spec().vocab_size, seed)[0] for seed in range(4)]
    expected = []
    for seed in range(4):
        backend, (branch,) = make(1), make_sequences([60], tiny_spec().vocab_size, seed)
        advance(backend, [(branch, 60)])
        expected.append(np.stack(branch.logits).tobytes())

    def work(i: int) -> None:
        while branches[i].left:
            advance(backends[i], [(branches[i], 1)])

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [np.stack(b.logits).tobytes() for b in branches] == expected


def test_a_backend_that_two_threads_step_at_once_refuses_one_and_serves_the_other() -> None:
    backend, length = make(2), 200
    expected = make(1)
    (branch,) = make_sequences([length], tiny_spec().vocab_size)
    step = step_of([(branch, length)])
    rows = expected.forward(step).logits.numpy().tobytes()
    served, refused, wrong = [0, 0, 0], [0, 0, 0], []

    def work(i: int) -> None:
        for _ in range(30):
            try:
                backend.forward(step)
                served[i] += 1
            except BackendError as error:
                refused[i] += 1
                if "one step at a time" not in str(error):
                    wrong.append(error)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
    assert sum(served) > 0
    assert sum(served) + sum(refused) == 90
    assert backend.forward(step).logits.numpy().tobytes() == rows


def test_workers_that_fell_asleep_always_wake() -> None:
    """Steps at gaps around the time that workers spin for: some find them about to sleep."""
    backend = make(3)
    (branch,) = make_sequences([300], tiny_spec().vocab_size)
    for i in range(300):
        advance(backend, [(branch, 1)])
        time.sleep((i % 20) * 1e-5)


TOO_MANY_THREADS = """
import resource
from tests.reference.tiny import make_tensors, random_weights, tiny_spec
from unspool.backend.cpu import CpuBackend
from unspool.errors import BackendError
from unspool.model.tensor import TensorType
tensors = make_tensors(random_weights(tiny_spec()), TensorType.Q8_0)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**28,) * 2)
try:
    CpuBackend(tiny_spec(), tensors, threads=256)
except BackendError as error:
    assert "threads" in str(error), error
    CpuBackend(tiny_spec(), tensors, threads=2)
    print("refused")
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_threads_that_the_system_does_not_start_are_an_error_not_the_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TOO_MANY_THREADS], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told_instead_of_hanging() -> None:
    backend = make(2)
    (branch,) = make_sequences([4], tiny_spec().vocab_size)
    child = os.fork()
    if child == 0:
        try:
            advance(backend, [(branch, 4)])
        except BackendError as error:
            os._exit(7 if "fork" in str(error) else 8)
        os._exit(9)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
