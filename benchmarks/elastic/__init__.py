"""Elastic jobs in the pods of a real cluster, beside others and beside gangs: `python -m benchmarks.elastic`.

Three experiments share the cluster (`cluster.py`), its jobs (`jobs.py`), the record of who held which unit when (`holding.py`), and what
was found of one way of an experiment (`outcome.py`, `telling.py`). An extended resource of the two nodes stands for a CPU, and a chunk
takes a fixed time, not computing; scheduler, masters, pods and the data that they account for are real.
"""
