"""The paper as data: its printed numbers, what it leaves open and how we read it, and its bounds. No torch.

Chen, Qiu, "Extra Clients at No Extra Cost: Overcome Data Heterogeneity in Federated Learning with Filter
Decomposition", ICML 2025.
"""
