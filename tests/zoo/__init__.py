"""The model zoo: its data tools, and models that are trained, evaluated, exported, and predict."""
