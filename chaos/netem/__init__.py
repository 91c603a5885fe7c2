"""A wire between two processes that can be made as bad as a network: one process of ours, one port for each link.

Bytes pass through it unread. What spoils them is of two sorts. Packets are really dropped, by the kernel, where a
filter on the wire's own sockets says so: loss and black holes are TCP's own stalls, repeats and unanswered
connections, and need no privileges. Being late and being narrow are the wire's: it holds what it has read. Resets
are real ones.

Where root may, and the kernel has netem, latency and loss can be the kernel's from end to end instead
(``chaos.netem.kernel_link``).

What a wire cannot copy: the connection from the proxy to the wire stands before the one from the wire to the
engine, so a dead engine's port resets connections instead of refusing them.
"""
