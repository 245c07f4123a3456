"""Models of tables: statistics of columns, what each column becomes, and the Keras model of it.

It is not SQL: anybody with a table as Parquet files can use it.
"""
