"""The Lua scripts that change the queue, on a real Redis server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.embedded_redis import EmbeddedRedis
from rstar2.judge.queue.redis_connection import Command, SyncRedisConnection, sync_client
from rstar2.judge.queue.tasks import Task
from rstar2.judge.schema import CellResult, Outcome, RunRequest, RunResult

BODY = RunRequest(code="print(1)").model_dump_json()


@pytest.fixture
def client(server: EmbeddedRedis) -> Iterator[Any]:
    with redis.Redis.from_url(server.url, decode_responses=True) as redis_client:
        for stream in (queue.TASKS, queue.RETURNED):
            redis_client.xgroup_create(stream, queue.GROUP, id="0", mkstream=True)
        yield redis_client


def do(client: Any, command: Command) -> Any:
    """Execute one command and return its reply."""
    return client.execute_command(*command)


def take(client: Any, worker: str) -> list[Task]:
    command = ("XREADGROUP", "GROUP", queue.GROUP, worker, "STREAMS", queue.RETURNED, queue.TASKS, ">", ">")
    connection = SyncRedisConnection(client)
    reply = connection.execute({"fetch": command})["fetch"]
    entries = queue.returned_entries(reply)
    claim = queue.claim_returned(worker, entries, len(entries) or 1)
    return Task.from_reply(connection.execute({"claim": claim})["claim"]) + Task.from_reply(reply)


def state(client: Any, name: str) -> str:
    """Returns the state of a program without its fingerprint."""
    return str(do(client, queue.get_state(name)))


@contextmanager
def published(client: Any) -> Iterator[list[queue.Notice]]:
    """Yields a list that contains, after the block, the notices that were published in the block."""
    notices: list[queue.Notice] = []
    with client.pubsub() as subscription:
        subscription.subscribe(queue.DONE)
        assert subscription.get_message(timeout=60)["type"] == "subscribe"
        yield notices
        client.publish(queue.DONE, "end 0 0 ")
        while not notices or notices[-1].id != "end":
            notices += queue.Notice.from_message(subscription.get_message(timeout=60)["data"])
        notices.pop()


def test_an_id_is_queued_once(client: Any) -> None:
    assert do(client, queue.enqueue({"a": BODY, "b": BODY})) == []
    [[entry, _], _] = client.xrange(queue.TASKS)
    assert do(client, queue.enqueue({"c": BODY, "a": BODY})) == ["a", f"@{queue.TASKS} {entry}"]
    assert [fields["id"] for _, fields in client.xrange(queue.TASKS)] == ["a", "b", "c"]


def test_the_first_result_counts_and_the_second_does_not(client: Any) -> None:
    do(client, queue.enqueue({"a": BODY}))
    [task] = take(client, "w1")
    first, second = RunResult(id="a", outcome="ok"), RunResult(id="a", outcome="error")
    assert do(client, queue.commit([(task, first)])) == ["stored", 1, "unfinished", 0, "workers", 0]
    assert do(client, queue.commit([(task, second)])) == ["stored", 0, "unfinished", 0, "workers", 0]
    assert RunResult.model_validate_json(state(client, "a")) == first
    assert client.hgetall(queue.OUTCOMES) == {"ok": "1"}
    assert client.xlen(queue.TASKS) == 0
    assert client.xpending(queue.TASKS, queue.GROUP)["pending"] == 0
    assert 0 < client.ttl(queue.state_key("a")) <= queue.RESULT_TTL_S


def test_results_stored_together_are_counted_and_acknowledged_each(client: Any) -> None:
    ids = [f"p{number}" for number in range(20)]
    do(client, queue.enqueue(dict.fromkeys(ids, BODY)))
    tasks = take(client, "w1")
    do(client, queue.return_task(tasks[0], "w1"))
    do(client, queue.cancel("p1"))
    tasks = [*take(client, "w1"), *tasks[1:]]
    outcomes: list[Outcome] = ["ok" if number % 2 else "error" for number in range(20)]
    results = [(task, RunResult(id=task.id, outcome=outcomes[n], wall_s=n)) for n, task in enumerate(tasks)]
    do(client, queue.enqueue({"waits": BODY}))
    client.hset(queue.WORKERS, mapping={"w1": "{}", "w2": "{}"})
    with published(client) as notices:
        assert do(client, queue.commit(results)) == ["stored", 19, "unfinished", 1, "workers", 2]
    [waiting_task] = take(client, "w1")
    assert waiting_task.id == "waits"
    do(client, queue.commit([(waiting_task, RunResult(id="waits", outcome="ok"))]))
    assert client.hgetall(queue.OUTCOMES) == {"ok": "10", "error": "10"}
    expected = [(result.id, n, result) for n, (_, result) in enumerate(results) if result.id != "p1"]
    assert [(n.id, n.wall_s, RunResult.model_validate_json(n.result)) for n in notices] == expected
    for stream in (queue.TASKS, queue.RETURNED):
        assert client.xlen(stream) == client.xpending(stream, queue.GROUP)["pending"] == 0


def test_a_long_result_is_stored_and_not_told(client: Any) -> None:
    do(client, queue.enqueue({"a": BODY}))
    [task] = take(client, "w1")
    result = RunResult(id="a", outcome="ok", stdout="x" * queue.DONE_INLINE_CHARS)
    with published(client) as notices:
        do(client, queue.commit([(task, result)]))
    assert [(notice.id, notice.result) for notice in notices] == [("a", "")]
    assert RunResult.model_validate_json(state(client, "a")) == result


def test_what_was_delivered_expires_sooner(client: Any) -> None:
    do(client, queue.enqueue({"a": BODY, "b": BODY}))
    do(client, queue.expire_delivered(["a", "b", "unknown"]))
    assert all(0 < client.ttl(queue.state_key(name)) <= queue.DELIVERED_TTL_S for name in "ab")


def test_a_cell_for_a_dead_worker_is_answered_and_not_queued(client: Any) -> None:
    command = queue.enqueue_cell("c", BODY, "w9", queue.fingerprint("asked"))
    [_, answer] = do(client, command)
    assert CellResult.model_validate_json(answer).outcome == "lost"
    assert client.xlen(queue.cells_stream("w9")) == 0
    client.hset(queue.WORKERS, "w9", "{}")
    assert do(client, command) == []
    [name, cell_state] = do(client, command)
    assert name == "c"
    assert cell_state.startswith(f"@{queue.cells_stream('w9')} ")
    client.hdel(queue.WORKERS, "w9")
    assert do(client, command) == ["c", cell_state]
    assert client.xlen(queue.cells_stream("w9")) == 1
    assert do(client, queue.enqueue_cell("c", BODY, "w9", queue.fingerprint("another"))) == [
        "c",
        queue.REUSED,
    ]


def test_a_dead_workers_tasks_go_to_the_others_and_count_the_try(client: Any) -> None:
    for name in "ab":
        do(client, queue.enqueue({name: BODY}))
    assert len(take(client, "dead")) == 2
    assert do(client, queue.remove_worker("dead")) == 2
    assert do(client, queue.remove_worker("dead")) == 0
    assert {(task.id, task.tries, task.stream) for task in take(client, "w2")} == {
        ("a", 1, queue.TASKS),
        ("b", 1, queue.TASKS),
    }


def test_what_is_given_back_keeps_its_age(client: Any) -> None:
    names = [f"p{number}" for number in range(8)]
    do(client, queue.enqueue(dict.fromkeys(names, BODY)))
    tasks = take(client, "w1")
    for task in (tasks[5], tasks[1]):
        do(client, queue.return_task(task, "w1"))
    do(client, queue.enqueue({"late": BODY}))
    # Some tasks of the dead worker are older than the tasks returned earlier, and some are newer.
    do(client, queue.remove_worker("w1"))
    redelivered = take(client, "w2")
    assert [task.id for task in redelivered] == [*names, "late"]
    assert [task.tries for task in redelivered] == [1, 0, 1, 1, 1, 0, 1, 1, 0]
    assert do(client, queue.return_task(tasks[3], "w1")) == 0
    assert [task.entry for task in redelivered] == [task.entry for task in (*tasks, redelivered[-1])]


def test_what_a_dead_worker_was_told_of_is_told_to_another(client: Any) -> None:
    do(client, queue.enqueue({"a": BODY}))
    [task] = take(client, "w1")
    do(client, queue.return_task(task, "w1"))
    streams: Any = {queue.RETURNED: ">"}
    [[_, entries]] = client.xreadgroup(queue.GROUP, "dies", streams)
    assert len(entries) == 1
    do(client, queue.remove_worker("dies"))
    [[_, entries]] = client.xreadgroup(queue.GROUP, "w2", streams)
    assert len(entries) == 1


def test_another_program_under_the_same_id_is_told_and_not_queued(client: Any) -> None:
    other_body = RunRequest(code="print(2)").model_dump_json()
    do(client, queue.enqueue({"a": BODY}))
    assert do(client, queue.enqueue({"a": other_body})) == ["a", queue.REUSED]
    [task] = take(client, "w1")
    do(client, queue.commit([(task, RunResult(id="a", outcome="ok"))]))
    assert do(client, queue.enqueue({"a": other_body})) == ["a", queue.REUSED]
    assert do(client, queue.enqueue({"a": BODY})) == ["a", state(client, "a")]
    do(client, queue.enqueue({"b": BODY}))
    do(client, queue.cancel("b"))
    assert do(client, queue.enqueue({"b": other_body})) == ["b", queue.REUSED]
    client.hset(queue.WORKERS, "w1", "{}")
    assert do(client, queue.enqueue_cell("b", BODY, "w1", queue.fingerprint("a cell"))) == ["b", queue.REUSED]
    assert client.xlen(queue.cells_stream("w1")) == 0


def test_what_is_given_back_is_delivered_again_without_a_try_counted(client: Any) -> None:
    do(client, queue.enqueue({"a": BODY}))
    [task] = take(client, "w1")
    do(client, queue.return_task(task, "w1"))
    [redelivered] = take(client, "w2")
    assert (redelivered.id, redelivered.tries, redelivered.body) == (task.id, 0, task.body)


def test_a_cancelled_program_is_not_delivered_and_can_be_asked_for_again(client: Any) -> None:
    do(client, queue.enqueue({"a": BODY}))
    assert do(client, queue.cancel("a")) == 1
    assert do(client, queue.cancel("a")) == 0
    assert take(client, "w1") == []
    assert do(client, queue.enqueue({"a": BODY})) == []
    assert len(take(client, "w1")) == 1


def test_a_cancelled_program_is_found_wherever_it_was_moved(client: Any) -> None:
    do(client, queue.enqueue({"a": BODY}))
    [task] = take(client, "w1")
    do(client, queue.return_task(task, "w1"))
    do(client, queue.cancel("a"))
    assert take(client, "w2") == []


def test_what_was_cancelled_while_it_ran_is_not_given_to_others_and_its_result_is_dropped(
    client: Any,
) -> None:
    do(client, queue.enqueue({"a": BODY}))
    [task] = take(client, "w1")
    do(client, queue.cancel("a"))
    assert do(client, queue.remove_worker("w1")) == 0
    assert do(client, queue.commit([(task, RunResult(id="a", outcome="ok"))]))[:2] == ["stored", 0]
    assert state(client, "a") == queue.CANCELLED


def test_a_result_of_a_run_that_was_cancelled_does_not_answer_the_next_one_under_its_id(client: Any) -> None:
    do(client, queue.enqueue({"a": BODY}))
    [cancelled] = take(client, "w1")
    do(client, queue.cancel("a"))
    do(client, queue.enqueue({"a": BODY}))
    [second_run] = take(client, "w2")
    late, result = RunResult(id="a", outcome="error"), RunResult(id="a", outcome="ok")
    with published(client) as notices:
        assert do(client, queue.commit([(cancelled, late)]))[:2] == ["stored", 0]
    assert notices == []
    assert state(client, "a") == queue.delivered_state(second_run)
    assert do(client, queue.commit([(second_run, result)]))[:2] == ["stored", 1]
    assert RunResult.model_validate_json(state(client, "a")) == result


def test_the_queue_survives_a_restart_of_its_server(client: Any, server: EmbeddedRedis) -> None:
    do(client, queue.enqueue({"a": BODY}))
    assert server.process is not None
    server.process.kill()
    server.process.wait(10)
    server.restart()
    assert client.xlen(queue.TASKS) == 1


def test_the_server_wants_its_password(server: EmbeddedRedis) -> None:
    stranger = sync_client(f"redis://127.0.0.1:{server.port}")
    with stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
