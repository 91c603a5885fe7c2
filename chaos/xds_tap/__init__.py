"""A relay between proxies and their control plane that records every push and reply, and can falsify them.

Each proxy has its own port behind a netem link (``chaos.netem``), so its connection can also be delayed, cut or
black-holed. gRPC streams pass through unchanged; only discovery is parsed, for types and nonces. If the control
plane is down, the proxies' streams end, as they would without the tap, and reconnect once it is back.

The control API is HTTP on loopback. ``PUT /orders/{name}`` with a JSON object sets a rule, ``DELETE
/orders/{name}`` removes it; both are in effect once answered. Active rules (``GET /orders``)::

    {"proxy": "p0", "lost": true}             # access logs and load reports are dropped
    {"proxy": "p0", "says": "all-failed"}     # or "all-good": reported outcome of every call
    {"proxy": "p0", "corrupt": "cds"}         # corrupt each response of this type, so that Envoy refuses it

``PUT /rules/{name}``, ``DELETE /rules/{name}``, ``GET /rules`` and ``GET /links`` are those of ``chaos.netem``;
links are named ``xds:p0`` and so on. ``GET /seen`` lists what has passed, as lines of JSON with monotonic times.
"""
