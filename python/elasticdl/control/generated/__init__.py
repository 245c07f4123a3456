"""Stubs made by `proto/generate.py`; not committed, carried by the wheel."""
