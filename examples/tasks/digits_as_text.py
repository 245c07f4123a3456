"""Process records once: each image of a digit becomes text, in files of 100 digits.

python examples/tasks/digits_as_text.py
elasticdl run --work=tasks --num_workers=3 --output=digits -- python examples/tasks/digits_as_text.py
"""

from sklearn.datasets import load_digits

import elasticdl

digits = load_digits()
SHADES = " .:-=+*#%"

for task in elasticdl.shards(len(digits.images), records_per_task=100, output="digits"):
    with task.output(suffix=".txt") as path, open(path, "w") as file:
        for number in task:
            print(f"{number}: {digits.target[number]}", file=file)
            for row in digits.images[number]:
                print("".join(SHADES[int(value) // 2] for value in row), file=file)
