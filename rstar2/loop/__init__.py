"""The core of rstar2: the agent loop, the formats of turns, the tools that turns call, and the trace of a rollout."""
