"""The paper as data: its printed numbers, our readings of it, its studies and bounds; imports experiment, no torch.

Chen, Qiu, "Extra Clients at No Extra Cost: Overcome Data Heterogeneity in Federated Learning with Filter
Decomposition", ICML 2025.
"""
