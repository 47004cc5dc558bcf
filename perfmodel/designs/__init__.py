"""Published co-designs, one file each: edits of where tables lie and how a step is laid out."""
