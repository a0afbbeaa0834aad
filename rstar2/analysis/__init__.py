"""What the traces of a model show: how uncertain each token was, how its tool calls went, how it behaved.

```
sources       which files of traces there are, and which model wrote each
entropy       per-token entropy: forward (a model here), server (a bound), or from what the traces kept
kinds         what each character is: a word, a number or a sign of the prose, code, a tag
tokens        the same of each token, and where it stands beside a tool reply
stored        the entropies beside the traces, in a compact file
uncertainty · calls · behaviour    the tables, each from traces one at a time
estimates     means with intervals, clustered by problem
analyze       all of it for one or several runs
```
"""
