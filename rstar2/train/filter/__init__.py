"""The filter before a stage: leaves out training problems that the policy it starts from solves every time.

```
problems × samples ─→ rstar2.eval.run, on every engine (engines) ─→ verdicts.jsonl (rstar2.eval.verdicts)
                   ─→ card.write_card: kept.jsonl, card.json ─→ the rows that the stage trains on
```

The paper's size is 42,000 problems × 8. A line of verdicts.jsonl is all that is kept of a rollout, unless the recipe
asks for traces too. A start with the same settings continues after the last line.
"""
