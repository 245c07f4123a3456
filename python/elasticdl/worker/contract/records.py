"""What an adapter is given to convert."""

from elasticdl.data.readers.records import Columns, Records, picked

__all__ = ["Columns", "Records", "picked"]
