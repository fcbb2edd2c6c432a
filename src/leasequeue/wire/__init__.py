"""Scripts, connections and the batching of calls: the only room that imports redis-py."""
