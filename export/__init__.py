"""From a trained checkpoint to a verified artifact: ``recsys-export``."""
