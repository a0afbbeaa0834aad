"""Decides which rollout engine runs which rollout, and when: a session is admitted where its KV cache will have room.

Nothing here knows VERL, Ray or the clock: the caller says what happened and what time it is.

```
rollout's turn ─→ policy.Scheduler ─→ on_placed(session, engine)
                    lengths.LengthModel   how long rollouts become, learned from those that ended
                    metrics.read_vllm     what an engine's KV cache really holds
```

`rstar2.train.verl.engines.router` is VERL's plugin around it.
"""
