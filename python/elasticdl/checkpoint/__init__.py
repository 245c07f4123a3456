"""The formats of states and checkpoints: layout, manifest, verification, and tables as Parquet."""
