"""From a forward pass to its backward pass: the tape, the engine, and a rule per operator."""
