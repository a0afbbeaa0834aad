"""The problem filter, which runs before a stage. It leaves out the training problems that the stage's initial policy
solves in every sample.

```
problems × samples ─→ rstar2.eval.run, on every engine (engines) ─→ verdicts.jsonl (rstar2.eval.verdicts)
                   ─→ card.write_card: kept.jsonl, card.json ─→ the rows that the stage trains on
```

The paper samples 42,000 problems 8 times each. For each rollout, the filter saves one line in verdicts.jsonl. It saves
the traces too if the recipe sets `keep_filter_traces`. If the filter is started again with the same settings, it
continues after the last line of verdicts.jsonl.
"""
