"""The judge's Python clients: `JudgeClient` for asyncio, and `SyncJudgeClient` for code without an event loop."""

from rstar2.judge.client.client import JudgeClient, SyncJudgeClient

__all__ = ["JudgeClient", "SyncJudgeClient"]
