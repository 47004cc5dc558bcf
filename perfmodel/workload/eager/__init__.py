"""What PyTorch runs in eager mode, op for op: its operators are methods of `Recorder` where they
make, view, join or send tensors, else functions of one; and the layers that are made of these.

Each writes its op and the ops that it calls, and returns the tensors that it makes. What it calls
differs between a CPU and a GPU; a test compares with execution traces.
"""
