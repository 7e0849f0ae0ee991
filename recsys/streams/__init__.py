"""Streams of deltas: folders, object stores and Kafka behind one interface (``recsys.streams.opening``)."""
