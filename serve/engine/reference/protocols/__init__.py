"""The three protocols: parsing of requests, and encoding of answers."""
