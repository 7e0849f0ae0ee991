"""Lowering a model to a program: typed steps over named inputs, tables and weights by path."""
