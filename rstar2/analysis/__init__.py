"""Analyses of traces: the entropy of each token, the tool calls, and the behaviour of the model.

```
sources       finds the files of traces, and the model that generated each
entropy       per-token entropy, from a model on this machine (forward), a server (bounds), or stored log-probabilities
kinds         classifies each character: a word, number or sign of the prose, code, markup
tokens        classifies each token, and finds its distance from a tool reply
stored        stores entropies beside the traces, in a compact file
uncertainty · calls · behaviour    compute the tables, one trace at a time
estimates     means with intervals, clustered by problem
analyze       the whole analysis of one or several runs
```
"""
