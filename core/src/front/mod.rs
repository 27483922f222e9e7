//! Session machines, one per client protocol.
