//! Volumes as a log of immutable segments.
