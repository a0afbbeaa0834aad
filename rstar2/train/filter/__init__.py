"""The filter before a stage: it leaves out training problems that the stage's first policy solves every time.

```
problems × samples ─→ rstar2.eval.run, on every engine (engines) ─→ verdicts.jsonl (rstar2.eval.verdicts)
                   ─→ card.write_card: kept.jsonl, card.json ─→ the rows that the stage trains on
```

The paper samples 42,000 problems 8 times each. Only a line of verdicts.jsonl is saved for each rollout, unless the
recipe sets `keep_filter_traces`. A start with the same settings continues after the last line.
"""
