"""A sandbox stays on one CPU; its programs do not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import TIMEOUT_S

from rstar2.judge.sandbox.host import cpu_affinity
from rstar2.judge.sandbox.host.cpu_affinity import CpuAffinity, CpuTimes
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.schema import RunRequest

ALL = os.sched_getaffinity(0)
pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="there is only one CPU")


@pytest.fixture
def pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A pool for this test alone; checks are not delayed, and afterwards all CPUs are ours again."""
    monkeypatch.setattr(cpu_affinity, "CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(cpu_affinity, "RETRY_S", 0.0)
    yield f"test-{os.getpid()}-{request.node.name}"
    os.sched_setaffinity(0, ALL)


class Load:
    """Counters like the kernel's, of CPUs that are busy, or idle, from call to call."""

    def __init__(self, busy: set[int]) -> None:
        self.busy = busy
        self.now: CpuTimes = dict.fromkeys(ALL, (0, 0))

    def __call__(self) -> CpuTimes:
        self.now = {
            cpu: (idle + (0 if cpu in self.busy else 100), total + 100)
            for cpu, (idle, total) in self.now.items()
        }
        return self.now


def test_every_cpu_is_claimed_once_and_the_other_workers_use_any(pool: str) -> None:
    affinities = []
    for _ in range(len(ALL) + 1):
        os.sched_setaffinity(0, ALL)
        affinities.append(CpuAffinity(pool))
        affinities[-1].update(0.0)
    assert sorted(affinity.cpu for affinity in affinities) == [-1, *sorted(ALL)]
    affinities[0].release()
    assert (affinities[0].cpu, os.sched_getaffinity(0)) == (-1, ALL)
    last = affinities[-1]
    assert last.update(0.0) in ALL
    assert os.sched_getaffinity(0) == {last.cpu}
    for affinity in affinities:
        affinity.release()


def test_a_worker_moves_from_a_crowded_cpu_to_an_idle_one_and_stays(pool: str) -> None:
    load = Load(set())
    affinity = CpuAffinity(pool, load)
    first = affinity.update(0.0)
    assert affinity.update(0.0) == first
    load.busy = {first}
    second = affinity.update(0.0)
    assert second != first
    assert os.sched_getaffinity(0) == {second}
    assert affinity.update(0.0) == second
    load.busy = set(ALL)
    assert affinity.update(0.0) == second
    os.sched_setaffinity(0, ALL)
    other = CpuAffinity(pool, Load({second}))
    assert other.update(0.0) != second
    affinity.release()
    other.release()


def test_a_worker_that_is_crowded_and_cannot_move_uses_any_cpu(pool: str) -> None:
    load = Load(set())
    affinity = CpuAffinity(pool, load)
    first = affinity.update(0.0)
    others = [cpu_affinity._claim_cpu(pool, cpu) for cpu in ALL - {first}]
    load.busy = {first}
    assert affinity.update(0.0) == -1
    assert os.sched_getaffinity(0) == ALL
    for claim in others:
        assert claim is not None
        claim.close()
    assert affinity.update(0.0) in ALL - {first}
    affinity.release()


def test_a_cpu_is_not_crowded_by_our_own_load(pool: str) -> None:
    load = Load(set())
    affinity = CpuAffinity(pool, load)
    first = affinity.update(0.0)
    load.busy = {first}
    # As if nothing but our own programs had run since.
    assert [affinity.update(1000.0 * second) for second in range(1, 5)] == [first] * 4
    affinity.release()


@pytest.mark.slow
def test_programs_may_use_all_cpus_in_a_rebuilt_jail_too(pool: str, tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / "box", minimum="landlock")
    sandbox.start()
    look = "import os\nsorted(os.sched_getaffinity(0))"

    def check() -> None:
        # From the first zygote, from one that it forks, and in a session.
        for code in (look, f"import re\n{look}"):
            result = sandbox.run(RunRequest(code=code, timeout_s=TIMEOUT_S), "a")
            assert result.value == str(sorted(ALL)), result
        assert len(os.sched_getaffinity(0)) == 1
        session = sandbox.open_session(kind="bare")
        assert session.run_cell(look, TIMEOUT_S, "c").value == str(sorted(ALL))

    try:
        sandbox.set_affinity(CpuAffinity(pool))
        check()
        sandbox._drop_jail("of the test")
        check()
    finally:
        sandbox.close()
    assert os.sched_getaffinity(0) == ALL
