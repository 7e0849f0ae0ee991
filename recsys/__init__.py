"""The sharded core: jagged data types, embedding collections, quantized rows, sharding."""
