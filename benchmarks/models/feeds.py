"""The same parsing by records and by whole chunks: digits in TFRecord files, flights as rows of strings and as columns, images."""

import tensorflow as tf

NAMES = ("carrier", "tailnum", "flight", "origin", "dest", "hour", "month")
NUMBERS = ("distance", "temp", "wind_speed", "precip", "visib")
IDS = 1 << 17
DIGITS = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


def digits(dataset, mode, metadata):
    def parse(record):
        example = tf.io.parse_single_example(record, DIGITS)
        pixels = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), [28, 28, 1])
        return tf.cast(pixels, tf.float32) / 255.0, example["label"]

    return dataset.map(parse)


def digits_whole(dataset, mode, metadata):
    def parse(records):
        examples = tf.io.parse_example(records, DIGITS)
        pixels = tf.reshape(tf.io.decode_raw(examples["image"], tf.uint8), [-1, 28, 28, 1])
        return tf.cast(pixels, tf.float32) / 255.0, examples["label"]

    return dataset.map(parse)


digits_whole.whole_chunks = True


def rows(dataset, mode, metadata):
    """One row, or a matrix of them."""
    place = {name: index for index, name in enumerate(metadata.column_names)}

    def parse(values):
        texts = tf.gather(values, [place[name] for name in NAMES], axis=-1)
        names = tf.strings.join([tf.broadcast_to(NAMES, tf.shape(texts)), texts], "=")
        numbers = tf.strings.to_number(tf.gather(values, [place[name] for name in NUMBERS], axis=-1))
        features = {"ids": tf.strings.to_hash_bucket_fast(names, IDS), "numbers": numbers}
        return features, tf.strings.to_number(values[..., place["late"]])

    return dataset.map(parse)


def columns(dataset, mode, metadata):
    """One record, or whole columns."""

    def parse(record):
        texts = [
            column if column.dtype == tf.string else tf.strings.as_string(column)
            for column in (record[name] for name in NAMES)
        ]
        names = [tf.strings.join([name, "=", text]) for name, text in zip(NAMES, texts, strict=True)]
        numbers = [tf.cast(record[name], tf.float32) for name in NUMBERS]
        features = {
            "ids": tf.strings.to_hash_bucket_fast(tf.stack(names, axis=-1), IDS),
            "numbers": tf.stack(numbers, axis=-1),
        }
        return features, tf.cast(record["late"], tf.float32)

    return dataset.map(parse)


def images(dataset, mode, metadata):
    def parse(record):
        image = tf.io.decode_image(record["image"], channels=1, expand_animations=False)
        return tf.cast(tf.ensure_shape(image, [None, None, 1]), tf.float32) / 255.0, record["label"]

    return dataset.map(parse)


def whole(feed):
    """Return the feed as one of whole chunks."""

    def of_chunks(dataset, mode, metadata):
        return feed(dataset, mode, metadata)

    of_chunks.whole_chunks = True
    return of_chunks
