"""Attention over the paged KV cache: one protocol (`protocol`), one module per implementation.

    protocol    what a step looks like to attention, and what a backend must do
    select      which backend a flag and a device give
    cpu         gathered pages and row-blocked matmuls that skip the causal half
    reference   plain torch, the oracle of the others

Runs in the engine process only. Nothing is imported here, so that naming the package stays cheap.
"""
