"""Real vLLM engines with a generated model, on the CPU or a GPU, to compare the fakes with.

``tiny_model`` writes the smallest model that vLLM serves; ``vllm_replica`` starts engines with it and finds the
processes that faults target. ``kernel_faults`` breaks their work on a GPU, and ``gpu_load`` works on one without
vLLM. vLLM has its own environment (``make vllm``), never this one.
"""
