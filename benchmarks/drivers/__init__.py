"""One small program per tool: does that tool's work on one trace and writes down how long it took.

Every driver is run as `python -P DRIVER TRACE REPORT one|all`, in a fresh interpreter, by
`peers.py`.
"""
