"""What PyTorch runs in eager mode, op for op: each function here is one of its operators.

A function writes its op and the ops that it calls into a `Recorder` and returns the tensors that it
makes. What it calls differs between a CPU and a GPU; a test compares with execution traces.
"""
