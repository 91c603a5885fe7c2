"""Real vLLM engines on the CPU, with a model made on the spot: what the fakes are held against.

``model`` writes the smallest model that vLLM serves; ``replica`` starts engines with it, and finds the processes
that faults are aimed at. vLLM lives in an environment of its own (``make vllm``), never in this one.
"""
