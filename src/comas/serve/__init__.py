"""A team behind an OpenAI-compatible endpoint: each of its setups is a model that clients ask.

`playing` says which models there are and has the team answer, `protocol` reads requests and words
replies, `limits` bounds them; `app` is the HTTP, `listening` the socket. Leaves out: the command
(`cli.serve`).
"""
