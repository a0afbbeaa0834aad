"""The agent's HTTP endpoint in the format of OpenAI's API.

requests      the request schema
answers       builds every object of OpenAI's format that rstar2 sends, also for benchmark harnesses
http          error responses, streams, API keys, CORS, clients that disconnect
agent         /v1/chat/completions
agent_server  the process of the endpoint, with its judge, and with its model if there is no engine's server
"""
