"""What stands between the Envoys and their control plane: it sees every push and every answer, and can spoil them.

Each proxy has a port of its own, behind a wire (``chaos.netem``), so that its connection can also be late, cut or
black-holed. Behind the wire every gRPC stream passes on as the bytes it is; only discovery is read, for its types
and nonces. When the control plane is gone the proxies' streams end, as they would without us, and find it again
when it is back.

Orders come over HTTP on loopback. ``PUT /orders/{name}`` with a JSON object makes one hold, ``DELETE
/orders/{name}`` takes it back, and both have happened when they are answered. Those that hold (``GET /orders``)::

    {"proxy": "p0", "lost": true}             # access logs and load reports reach nobody
    {"proxy": "p0", "says": "all-failed"}     # or "all-good": every call is said to have ended so
    {"proxy": "p0", "corrupt": "cds"}         # each response of this type is one that Envoy must refuse

``PUT /rules/{name}``, ``DELETE /rules/{name}``, ``GET /rules`` and ``GET /links`` are those of the wires, whose
names are ``xds:p0`` and so on. ``GET /seen`` is what passed so far, as lines of JSON with times on the machine's
monotonic clock.
"""
