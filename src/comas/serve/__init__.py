"""A team behind an OpenAI-compatible endpoint: each of its setups is a model that clients ask.

`playing` says which models there are and has the team answer, `protocol` reads requests and words
replies and refusals, `endpoint` is the HTTP and the socket. Leaves out: the command (`cli.serve`).
"""
