"""The judge's Python clients: `JudgeClient` for asyncio code, `SyncJudgeClient` for other code."""

from rstar2.judge.client.client import JudgeClient, SyncJudgeClient

__all__ = ["JudgeClient", "SyncJudgeClient"]
