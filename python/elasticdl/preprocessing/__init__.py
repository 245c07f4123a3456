"""Layers that make numbers and ids of raw values, and statistics of columns to build them with; Keras has most others.

Names and results are those of ElasticDL 0.2's preprocessing package, where they are right.
"""
