"""Keras 2 (the package tf_keras) as a framework: model files of TensorFlow up to 2.15, with feature columns and legacy optimizers.

What trains them is the code of `elasticdl.keras`, which asks a model's library for what differs. Importing this imports no TensorFlow.
"""
