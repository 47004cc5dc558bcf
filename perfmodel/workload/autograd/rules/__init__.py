"""How each op of a forward pass is differentiated; every file here registers its own."""
