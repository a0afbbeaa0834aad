"""HTTP endpoints in OpenAI's format: a model run with transformers, and the agent with its tools.

requests      what clients ask, and what is refused
answers       the objects and events that are sent
errors        OpenAI's error shape; clients that leave
context       what is too long for the model
turns         one turn of the transformers engine: text, stop strings, log-probabilities
completions   /v1/completions, /v1/chat/completions
tool_calls    the calls in a turn's text
model_server  the process that serves a model with transformers
agent         /v1/chat/completions of the agent
agent_server  its process, with a judge
"""
