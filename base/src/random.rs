//! Random numbers for identities: from the system, not from a seed.

use anyhow::{Result, anyhow};

/// A number that nobody else draws.
///
/// # Errors
/// If the system gives no random bytes.
pub fn identity() -> Result<u128> {
    Ok(u128::from_le_bytes(draw()?))
}

/// A value that nobody can guess.
///
/// # Errors
/// If the system gives no random bytes.
pub fn secret() -> Result<[u8; 32]> {
    draw()
}

/// `N` bytes that nobody else draws.
///
/// # Errors
/// If the system gives no random bytes.
pub fn bytes<const N: usize>() -> Result<[u8; N]> {
    draw()
}

fn draw<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| anyhow!("the system gives no random bytes: is getrandom(2) allowed?"))?;
    Ok(bytes)
}
