"""Tables: quantization, sharding, writing."""
