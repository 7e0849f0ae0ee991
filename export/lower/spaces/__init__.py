"""Which steps run once for each context, and which for each row."""
