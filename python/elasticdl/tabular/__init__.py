"""Models of tables: statistics of columns, what each column becomes, and the Keras model of it.

It is not SQL: a table as Parquet files is all that it needs.
"""
