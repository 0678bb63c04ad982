"""A federation with filter atoms, on Flower."""
