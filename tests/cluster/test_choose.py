import pytest

from bisect_env.cluster.choose import WORKERS_PER_CPU, executor_maker
from bisect_env.cluster.local import default_workers
from bisect_env.errors import UsageError


def test_more_workers_than_a_machine_can_feed_are_refused() -> None:
    most = WORKERS_PER_CPU * default_workers()
    executor_maker(workers=most)
    with pytest.raises(UsageError, match=f"--workers {most + 1}"):
        executor_maker(workers=most + 1)


def test_gpus_for_a_matrix_without_gpus_are_refused() -> None:
    with pytest.raises(UsageError, match="use no GPU"):
        executor_maker(gpus="0")


def test_a_scheduler_brings_its_own_workers() -> None:
    with pytest.raises(UsageError, match="--workers"):
        executor_maker(scheduler="tcp://127.0.0.1:1", workers=2)
