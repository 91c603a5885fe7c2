"""A relay that emulates a bad network between two processes: one process, one port per link.

Bytes pass through unread. Loss and black holes are real: the kernel drops packets with a filter on the relay's
sockets, so TCP stalls and retransmits; this needs no privileges. Latency and bandwidth are emulated: the relay
holds what it has read. Resets are real.

With root and netem in the kernel, latency and loss can be the kernel's from end to end
(``chaos.netem.kernel_link``).

Limitation: the relay accepts the proxy's connection before it connects to the engine, so a dead engine's port
resets connections instead of refusing them.
"""
