"""The adapter for Keras models on TensorFlow. Importing this package imports neither; its modules do."""
