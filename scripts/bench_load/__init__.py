"""Load generator of `scripts/bench`: fixed workloads over raw HTTP/1.1, one server measured after another."""
