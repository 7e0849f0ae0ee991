"""Rows of tables as bytes: formats, layout, quantization, files."""
