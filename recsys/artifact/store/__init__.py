"""Rows of artifacts in Redis or Valkey nodes, which ``recsys-serve --rows`` reads."""
