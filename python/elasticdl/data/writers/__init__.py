"""What writes the rows of files into tables of databases."""
