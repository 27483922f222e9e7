//! Random numbers for identities: from the system, not from a seed.

use anyhow::{Result, anyhow};

/// A number that nobody else draws.
///
/// # Errors
/// If the system gives no random bytes.
pub fn identity() -> Result<u128> {
    let mut bytes = [0; 16];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| anyhow!("the system gives no random bytes: is getrandom(2) allowed?"))?;
    Ok(u128::from_le_bytes(bytes))
}
