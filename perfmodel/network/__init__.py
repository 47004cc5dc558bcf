"""What collectives take on links and networks: models behind one contract, beside `kernels`."""
