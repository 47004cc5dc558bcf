"""From ops to what they become on a target: launches, kernels, copies, collectives, waits."""
