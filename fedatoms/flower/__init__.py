"""A real federation on Flower: translation only, the algorithms are those of the simulator."""
