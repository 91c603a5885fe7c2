"""Real vLLM engines on the CPU with a generated model, to compare the fakes with.

``tiny_model`` writes the smallest model that vLLM serves; ``vllm_replica`` starts engines with it and finds the
processes that faults target. vLLM has its own environment (``make vllm``), never this one.
"""
