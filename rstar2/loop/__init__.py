"""The recipe's core: the agent loop, the formats of its turns, the tools they call, and the trace that is left."""
