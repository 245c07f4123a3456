"""A custom training loop in TensorFlow: handwritten digits, with `tf.GradientTape`.

python examples/custom_loops/tensorflow_digits.py
elasticdl run --num_workers=3 --output=digits.keras -- python examples/custom_loops/tensorflow_digits.py
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import elasticdl

job = elasticdl.init(seed=1)
keras.utils.set_random_seed(1)
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)

model = keras.Sequential([keras.Input([64]), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)])
optimizer = keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)
variables = model.trainable_variables
job.state["model"] = model.variables
job.state["optimizer"] = optimizer.variables
job.result(lambda path: model.save(path))


@tf.function(reduce_retracing=True)
def compute(rows, truth):
    with tf.GradientTape() as tape:
        losses = keras.losses.sparse_categorical_crossentropy(
            truth, model(rows, training=True), from_logits=True
        )
        loss = tf.reduce_mean(losses)
    return loss, tape.gradient(loss, variables)


for chunk in job.chunks(len(images), batch_size=32, num_epochs=5, parameters=variables):
    loss, gradients = compute(images[chunk], labels[chunk])
    mean = job.step(gradients, loss=float(loss))
    if mean is not None:
        optimizer.apply_gradients(zip(mean, variables, strict=True))

accuracy = float(np.mean(model(images).numpy().argmax(1) == labels))
job.print(f"accuracy {accuracy:.3f} after {job.steps} steps")
