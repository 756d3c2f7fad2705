"""KV bookkeeping: block pool, prefix cache and the allocator over both. Pure Python."""
