"""The client of the judge: programs and sessions from Python, asynchronous and synchronous."""

from rstar2.judge.client.client import JudgeClient, SyncJudgeClient

__all__ = ["JudgeClient", "SyncJudgeClient"]
