"""Modules that models are made of: dense layers, cross networks and factorization machines."""
