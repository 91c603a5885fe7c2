"""A double of NVIDIA's libnvidia-ml.so.1, for machines without a GPU."""
