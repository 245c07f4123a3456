"""Keras models on JAX and on PyTorch. Importing this package imports neither of them, nor Keras; its modules do.

Nothing here imports TensorFlow, which need not be installed. What does not depend on what Keras computes with is in the room above.
"""
