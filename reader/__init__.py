"""Shards in, a shuffled, batched, prefetched `tf.data` stream out."""
