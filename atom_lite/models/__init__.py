"""Models: what they are, where their weights come from, and the decoder that runs them.

    checkpoint  spec            what to serve and its sizes; free of torch, for the frontend
    families    llama, ...      one small file per family: how it differs
    registry                    load_model: weights checked, joined and packed into a decoder
    decoder                     the forward pass that all families share
    load_*      gguf_*          safetensors, GGUF and random weights under one protocol (`weights`)

Nothing is imported here, so that the torch-free modules stay so.
"""
