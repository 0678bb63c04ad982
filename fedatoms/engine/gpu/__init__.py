"""Batched kernels for the filters of many clients on a GPU; imports nothing of ours."""
