"""Building blocks of a decoder: linear, norm, rope, embedding, mlp.

A layer holds its weights and computes; it does not load, does not know a model family, and keeps no
state of a step. All run under torch.inference_mode in the engine process, so buffers that a layer
has just made may be changed in place by the next one.

Legend of the package: T tokens of the step, R rows, E hidden size, F intermediate size, H heads,
D head size, V vocabulary.
"""
