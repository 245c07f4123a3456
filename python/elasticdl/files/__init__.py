"""What is written and read on disks: whole files, strict JSON, directories that belong to somebody, names of results."""
