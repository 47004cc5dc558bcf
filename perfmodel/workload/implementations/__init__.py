"""Software that trains or serves a DLRM; every file here registers what it runs in a step."""
