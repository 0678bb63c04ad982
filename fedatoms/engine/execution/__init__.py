"""Ways to map a client's round over many clients: loop, vmap, blocks, CUDA graphs; imports client_round and gpu."""
