"""Models: DLRM, and the click model of logits that checkpoints name."""
