"""The agent behind an HTTP endpoint in OpenAI's format.

requests      request schema: what clients may send, and what is refused
answers       builds every object of OpenAI's format that rstar2 sends, also for benchmark harnesses
http          errors as HTTP answers, streams, API keys, clients that disconnect
agent         /v1/chat/completions of the agent
agent_server  its process, with a judge, and with a model that no engine's server holds
"""
