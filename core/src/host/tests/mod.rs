//! The engine against a plain array, a disk that tears, a store and a link that lose things.

mod ahead;
mod caching;
mod copy;
mod damage;
mod disk;
mod durability;
mod keyed;
mod plain;
mod random;
mod recovery;
mod repair;
mod rewriting;
mod root;
mod shipping;
mod store;
pub(crate) mod table;
mod world;
