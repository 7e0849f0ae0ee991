"""The three protocols: from a message to a request, and from its outputs to the answer."""
