"""The parts of the protocols that ports and engines share."""
