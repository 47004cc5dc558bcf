"""How a step reaches the rows of tables in each tier, one file per tier and cache."""
