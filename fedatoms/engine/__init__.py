"""A federation on one machine, round after round; imports core, nn, data, algorithms and personal."""
