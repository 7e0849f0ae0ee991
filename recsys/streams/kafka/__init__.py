"""Deltas in a topic of Kafka, cut into messages (``message.py``); needs the package confluent-kafka."""
