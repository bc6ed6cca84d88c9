"""Serves a model until stdin ends: ``llama_server.py MODEL.gguf``, with the cache's Python.

Prints the base URL once the model is loaded.
"""

import sys

import xllamacpp

# A request with `n: 2` takes two slots at once.
_SLOTS = 2

# Of each slot, in tokens. It bounds every reply: a loop that nobody cuts ends there as well.
_CONTEXT = 2048

# The tests share the machine, and one thread's floating point always adds up in the same order.
_THREADS = 1

# llama.cpp writes a comment after so much silence, 30 as it ships: too long for a test.
_COMMENT_EVERY_S = 1

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.model_alias = {"smollm2"}
params.n_parallel = _SLOTS
params.n_ctx = _SLOTS * _CONTEXT
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = _THREADS
params.sse_ping_interval = _COMMENT_EVERY_S
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
