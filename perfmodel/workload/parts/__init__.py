"""What implementations of a DLRM share: MLPs, lookups, interactions, exchanges, optimizers."""
