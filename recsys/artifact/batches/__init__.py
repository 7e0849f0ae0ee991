"""Batches of a model: ranking form, samples, verified answers, warm-up."""
