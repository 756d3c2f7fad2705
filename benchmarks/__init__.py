"""Load client, peers and measurements; no part of the server and not in its wheel.

Everything here talks to servers over HTTP, so peers are measured by the same client.
"""
