//! Reads the sources of the workspace, so that tests can hold the rules of the house.
//!
//! - [`source`]: the files, and what a line of one is.
//! - [`imports`]: which file takes names from which, and the circles among them.
//! - [`types`]: structs with their fields, and the names of public types.
//!
//! It reads text, not syntax trees: it can miss something, and refuses no good code for that.

pub mod imports;
#[cfg(test)]
mod rules;
pub mod source;
pub mod types;
