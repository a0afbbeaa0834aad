"""The rollout scheduler. The scheduler decides which engine runs a rollout, and starts the rollout when enough room in
the engine's KV cache is expected.

In this package, a rollout is called a session. The scheduler does not use VERL, Ray or the clock: the caller reports
events and their time.

```
a session's turn ─→ policy.Scheduler ─→ placed(session, engine)
                      engine.EngineState    the sessions of an engine, and the KV cache that they will need
                      lengths.LengthModel   predicts lengths from the sessions that ended
                      metrics.read_vllm     reads the use of an engine's KV cache
```

`rstar2.train.verl.engines.router` is the plugin through which VERL uses the scheduler.
"""
