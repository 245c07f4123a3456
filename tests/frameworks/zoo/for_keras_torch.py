from for_keras_jax import *  # noqa: F403  # the same file trains with both
