"""Networks: atoms and coefficients, Hadamard factors, pure functions, the paper's models; imports core."""
