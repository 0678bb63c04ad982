"""Networks as atoms and coefficients, as Hadamard factors, as pure functions, and the paper's models; imports core."""
