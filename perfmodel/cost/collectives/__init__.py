"""What collectives take on links and networks."""
