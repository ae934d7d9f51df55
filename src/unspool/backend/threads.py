"""How many threads a computation should have, and the pools that hold them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np

from unspool._native import Pool
from unspool.errors import ParameterError, shown

MAX_THREADS = 256

_pools: dict[tuple[int, int], Pool] = {}
_lock = threading.Lock()


def default_threads() -> int:
    """The least of physical cores, this process's affinity mask and its cgroup's processor quota."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    limits = [len(allowed), _physical_cores(allowed), *_cgroup_quotas()]
    return max(1, min(limits))


def shared_pool(threads: object) -> Pool:
    """This process's pool of that many threads (default: ``default_threads()``); backends share it.

    Raises:
        ParameterError: ``threads`` is not a whole number from 1 to 256.
    """
    if threads is None:
        threads = default_threads()
    number = threads if isinstance(threads, (int, np.integer)) and not isinstance(threads, bool) else 0
    if not 1 <= number <= MAX_THREADS:
        raise ParameterError(f"threads must be a whole number from 1 to {MAX_THREADS}, not {shown(threads)}")
    with _lock:
        key = (os.getpid(), int(number))
        if key not in _pools:
            _pools[key] = Pool(int(number))
        return _pools[key]


def _physical_cores(processors: set[int]) -> int:
    """Cores behind these processors: two hyper-threads of one core share its arithmetic."""
    cores = set()
    for processor in processors:
        siblings = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            return len(processors)
    return len(cores)


def _cgroup_quotas(
    membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> list[int]:
    """Whole processors that each cgroup on this process's path may use, where one has a quota."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root = mount / controllers if controllers else mount
        here = root / path.lstrip("/")
        for folder in (here, *here.parents):
            if root in (folder, *folder.parents):
                quotas += _quota_of(folder)
    return quotas


def _quota_of(folder: Path) -> list[int]:
    """The quota that a cgroup sets itself, version 2 (``cpu.max``) or 1 (``cpu.cfs_quota_us``)."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        elif (folder / "cpu.cfs_quota_us").exists():
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        else:
            return []
        return [max(1, int(quota) // int(period))] if quota not in ("max", "-1") else []
    except (OSError, ValueError):
        return []
