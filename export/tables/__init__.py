"""Tables: quantized, sharded, written."""
