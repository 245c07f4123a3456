"""What model files of ElasticDL 0.2 import, under their old names, while such a file is loaded; `finder.py` says how."""
