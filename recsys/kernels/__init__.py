"""Lookup kernels: int-nbit and training TBE, and the check of IDs before them."""
