"""A team behind an OpenAI-compatible endpoint: each of its setups is a model that clients ask.

`offered` says which models there are, `conversation` and `asked` read requests, `playing` has the
team answer, `replies` words what comes back, `limits` bounds it; `app` is the HTTP, `listening` the
socket. Leaves out: the command (`cli.serve`).
"""
