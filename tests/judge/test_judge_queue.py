"""The scripts that change the queue, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from rstar2.judge import queue
from rstar2.judge.embedded import EmbeddedRedis
from rstar2.judge.queue import Task
from rstar2.judge.schema import RunRequest, RunResult

BODY = RunRequest(code="print(1)").model_dump_json()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    folder: Path = tmp_path_factory.mktemp("redis")
    embedded = EmbeddedRedis(folder, folder / "log")
    embedded.start()
    yield embedded
    embedded.stop()


@pytest.fixture
def client(server: EmbeddedRedis) -> Iterator[Any]:
    with redis.Redis.from_url(server.url, decode_responses=True) as found:
        found.flushall()
        for stream in (queue.TASKS, queue.RETURNED):
            found.xgroup_create(stream, queue.GROUP, id="0", mkstream=True)
        yield found


def take(client: Any, worker: str) -> list[Task]:
    found = client.xreadgroup(queue.GROUP, worker, {queue.RETURNED: ">", queue.TASKS: ">"})
    return [Task.from_fields(stream, entry, fields) for stream, items in found for entry, fields in items]


def test_an_id_is_queued_once(client: Any) -> None:
    new, entry = client.eval(*queue.enqueue_args("a", BODY))
    assert new == 1
    assert client.eval(*queue.enqueue_args("a", BODY)) == [0, f"@{queue.TASKS} {entry}"]
    assert client.xlen(queue.TASKS) == 1


def test_the_first_result_counts_and_the_second_does_not(client: Any) -> None:
    client.eval(*queue.enqueue_args("a", BODY))
    [task] = take(client, "w1")
    first, second = RunResult(id="a", outcome="ok"), RunResult(id="a", outcome="error")
    assert client.eval(*queue.commit_args(task, first)) == 1
    assert client.eval(*queue.commit_args(task, second)) == 0
    assert RunResult.model_validate_json(client.get(queue.state_key("a"))) == first
    assert client.hgetall(queue.OUTCOMES) == {"ok": "1"}
    assert client.xlen(queue.TASKS) == 0
    assert client.xpending(queue.TASKS, queue.GROUP)["pending"] == 0
    assert 0 < client.ttl(queue.state_key("a")) <= queue.RESULT_TTL_S


def test_a_dead_workers_tasks_go_to_the_others_and_count_the_try(client: Any) -> None:
    for name in "ab":
        client.eval(*queue.enqueue_args(name, BODY))
    assert len(take(client, "dead")) == 2
    assert client.eval(*queue.reap_args("dead")) == 2
    assert client.eval(*queue.reap_args("dead")) == 0
    assert {(task.id, task.tries, task.stream) for task in take(client, "w2")} == {
        ("a", 1, queue.RETURNED),
        ("b", 1, queue.RETURNED),
    }


def test_what_is_given_back_is_delivered_again_without_a_try_counted(client: Any) -> None:
    client.eval(*queue.enqueue_args("a", BODY))
    [task] = take(client, "w1")
    client.eval(*queue.give_back_args(task))
    [again] = take(client, "w2")
    assert (again.id, again.tries, again.body) == (task.id, 0, task.body)


def test_a_cancelled_program_is_not_delivered_and_can_be_asked_for_again(client: Any) -> None:
    client.eval(*queue.enqueue_args("a", BODY))
    assert client.eval(*queue.cancel_args("a")) == 1
    assert client.eval(*queue.cancel_args("a")) == 0
    assert take(client, "w1") == []
    assert client.eval(*queue.enqueue_args("a", BODY))[0] == 1
    assert len(take(client, "w1")) == 1


def test_a_cancelled_program_is_found_wherever_it_was_moved(client: Any) -> None:
    client.eval(*queue.enqueue_args("a", BODY))
    [task] = take(client, "w1")
    client.eval(*queue.give_back_args(task))
    client.eval(*queue.cancel_args("a"))
    assert take(client, "w2") == []


def test_what_was_cancelled_while_it_ran_is_not_given_to_others_and_its_result_is_dropped(
    client: Any,
) -> None:
    client.eval(*queue.enqueue_args("a", BODY))
    [task] = take(client, "w1")
    client.eval(*queue.cancel_args("a"))
    assert client.eval(*queue.reap_args("w1")) == 0
    assert client.eval(*queue.commit_args(task, RunResult(id="a", outcome="ok"))) == 0
    assert client.get(queue.state_key("a")) == queue.CANCELLED


def test_the_queue_survives_a_restart_of_its_server(client: Any, server: EmbeddedRedis) -> None:
    client.eval(*queue.enqueue_args("a", BODY))
    assert server.process is not None
    server.process.kill()
    server.process.wait(10)
    server.restart()
    assert client.xlen(queue.TASKS) == 1


def test_the_server_wants_its_password(server: EmbeddedRedis) -> None:
    with (
        redis.Redis(host="127.0.0.1", port=server.port) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()
