"""The judge, clients with other protocol versions, and fields that the judge does not know."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from support.waiting import TIMEOUT_S
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from rstar2.judge.protocol_version import HEADER, PROTOCOL, ProtocolVersion
from rstar2.judge.service.start import JudgeHandle

LATER = ProtocolVersion(PROTOCOL.major, PROTOCOL.minor + 1)
NEXT_MAJOR = ProtocolVersion(PROTOCOL.major + 1, 0)
PROGRAM: dict[str, Any] = {"code": "print(1)", "timeout_s": TIMEOUT_S, "added": 5}


def version_header(version: object) -> dict[str, str]:
    """Returns the headers of a client that names this protocol version, or no headers if `version` is None."""
    return {} if version is None else {HEADER: str(version)}


def dial(judge: JudgeHandle, version: object) -> ClientConnection:
    url = judge.url.replace("http", "ws", 1) + "/v1/runs/stream"
    return connect(url, additional_headers=version_header(version), proxy=None, open_timeout=TIMEOUT_S)


def receive(stream: ClientConnection) -> dict[str, Any]:
    [answer] = json.loads(stream.recv(timeout=TIMEOUT_S))
    return dict(answer)


@pytest.mark.parametrize("version", [None, PROTOCOL])
def test_an_unknown_field_is_refused_by_name_unless_a_later_client_sends_it(
    judge: JudgeHandle, http: httpx.Client, version: object
) -> None:
    with dial(judge, version) as stream:
        stream.send(json.dumps([{"id": f"typo-{version}", "run": PROGRAM}]))
        result = receive(stream)["result"]
        assert (result["outcome"], result["stderr"]) == ("invalid", "added: Extra inputs are not permitted")
        stream.send(json.dumps([{"id": "a", "run": {"code": "1"}, "added": 5}]))
        with pytest.raises(ConnectionClosed, match=r"0\.added"):
            stream.recv(timeout=TIMEOUT_S)
    headers = version_header(version)
    answer = http.post("/v1/runs", json=PROGRAM, headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (422, "added: Extra inputs are not permitted")
    [result] = http.post("/v1/runs/batch", json={"runs": [PROGRAM]}, headers=headers).json()["results"]
    assert result["outcome"] == "invalid"
    for path, body in (
        ("/v1/runs/batch", {"runs": []}),
        ("/v1/sessions", {}),
        ("/v1/sessions/w.1/cells", {"code": ""}),
    ):
        answer = http.post(path, json={**body, "added": 5}, headers=headers)
        assert (answer.status_code, "added" in answer.text) == (422, True), path


def test_a_later_client_may_send_fields_that_the_judge_does_not_know(
    judge: JudgeHandle, http: httpx.Client
) -> None:
    with dial(judge, LATER) as stream:
        stream.send(json.dumps([{"id": "later", "run": PROGRAM, "added": 5}]))
        assert receive(stream)["result"]["stdout"] == "1\n"
        stream.send(json.dumps([{"id": "later", "cancel": True, "added": 5}]))
        assert receive(stream) == {"id": "later", "cancelled": True}
        # A wrong value in a field that the judge knows is still refused.
        stream.send(json.dumps([{"id": "bad", "run": {"code": 5, "added": 5}}]))
        assert receive(stream)["result"]["stderr"].startswith("code: ")
    headers = version_header(LATER)
    assert http.post("/v1/runs", json=PROGRAM, headers=headers).json()["stdout"] == "1\n"
    batch = {"runs": [PROGRAM], "added": 5}
    [result] = http.post("/v1/runs/batch", json=batch, headers=headers).json()["results"]
    assert result["stdout"] == "1\n"
    session = http.post("/v1/sessions", json={"added": 5}, headers=headers).json()["id"]
    cell = {"code": "6 * 7", "timeout_s": TIMEOUT_S, "added": 5}
    result = http.post(f"/v1/sessions/{session}/cells", json=cell, headers=headers).json()
    assert result["value"] == "42"
    assert http.delete(f"/v1/sessions/{session}", headers=headers).status_code == 204


def test_a_field_that_one_version_ignores_makes_no_other_request_under_the_same_key(
    judge: JudgeHandle, http: httpx.Client
) -> None:
    """During an upgrade, a client may reach a judge that knows the field and then one that does not."""
    headers = version_header(LATER) | {"Idempotency-Key": "asked-of-two-versions"}
    known_fields = {name: value for name, value in PROGRAM.items() if name != "added"}
    answers = [
        http.post("/v1/runs", json=program, headers=headers).json() for program in (PROGRAM, known_fields)
    ]
    assert answers[0] == answers[1]
    assert answers[0]["stdout"] == "1\n"


@pytest.mark.parametrize("version", [NEXT_MAJOR, "0.9", "", "soon"])
def test_a_client_of_another_major_version_is_refused_and_told_what_to_update(
    judge: JudgeHandle, http: httpx.Client, version: object
) -> None:
    with pytest.raises(InvalidStatus) as handshake:
        dial(judge, version)
    assert handshake.value.response.status_code == 426
    answer = http.post("/v1/runs", json=PROGRAM, headers=version_header(version))
    assert answer.status_code == 426
    assert answer.headers[HEADER] == str(PROTOCOL)
    message = answer.json()["error"]
    protocol = "of the judge's protocol"
    version_text = {
        "": f"an older version {protocol} that has no number",
        "soon": f"'soon', which is not a version {protocol}",
    }.get(str(version), f"version {version} {protocol}")
    assert message.startswith(
        f"this client speaks {version_text}, and this judge speaks version {PROTOCOL}. "
    )
    older = "the judge:" if version == NEXT_MAJOR else "the client's machine:"
    assert f"Update rstar2 for {older}" in message
    # `/health` tells every client the judge's version.
    health = http.get("/health", headers=version_header(version))
    assert health.json()["protocol"] == str(PROTOCOL)


def test_the_handshake_names_the_judges_version(judge: JudgeHandle) -> None:
    with dial(judge, PROTOCOL) as stream:
        assert stream.response is not None
        assert stream.response.headers[HEADER] == str(PROTOCOL)
