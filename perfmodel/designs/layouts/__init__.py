"""Where tables lie: the ways there are, what each adds to a step, the best ones found, and which a
deployment has unless it is told."""
