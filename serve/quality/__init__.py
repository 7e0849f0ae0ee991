"""Quality of answers by their labels, over windows of time."""
