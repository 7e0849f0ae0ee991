"""recsys-profile: where an artifact's time goes, against the limits of the machine."""
