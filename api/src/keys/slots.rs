//! The slots of a list of keys. Each holds the volume's secret, wrapped with a key of an operator
//! or host.
//!
//! A key file, a passphrase (through Argon2id, RFC 9106) or a recovery key opens a slot. The slot
//! comes from the store, and holds the cost of trying a passphrase. So this module bounds the cost
//! before it computes anything. It knows nothing of volumes and stores.

use anyhow::{Context as _, Result, anyhow, bail};
use argon2::{Algorithm, Argon2, Params, Version};
use longhaul_base::random;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest::{SHA256, digest};
use ring::hkdf;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize as _, Zeroizing};

/// Bytes of a secret, and of every key here.
pub const SECRET_BYTES: usize = 32;
/// Most slots of a volume.
pub const MAX_SLOTS: usize = 8;
/// Least and most bytes of a passphrase.
pub const PASSPHRASE_BYTES: std::ops::RangeInclusive<usize> = 8..=1024;

/// Most memory of one try of a passphrase, in KiB: 1 GiB.
const MAX_MEMORY_KIB: u32 = 1 << 20;
/// Most passes over the memory, and most of both together in KiB: some 10 s of one processor.
const MAX_PASSES: u32 = 64;
const MAX_WORK_KIB: u64 = 4 << 20;
const MAX_LANES: u32 = 16;
/// The cost of new slots: the second recommendation of RFC 9106 §4.
const COST: Cost = Cost { memory_kib: 64 << 10, passes: 3, lanes: 4 };

const SALT_BYTES: usize = 16;
const RECOVERY_BYTES: usize = 20;
/// Letters of a recovery key: its bytes, and 20 bits of their hash.
const RECOVERY_LETTERS: usize = RECOVERY_BYTES * 8 / 5 + 4;
/// Base32 of Crockford: without letters that look like digits.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// The secret that wraps the keys of a volume. Its drop wipes it from memory. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<[u8; SECRET_BYTES]>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// A new one.
    pub fn draw() -> Result<Secret> {
        Ok(Secret(Zeroizing::new(random::secret()?)))
    }

    /// A key for one purpose.
    pub fn derive(&self, purpose: &str) -> Result<Zeroizing<[u8; SECRET_BYTES]>> {
        expand(&[], &*self.0, purpose)
    }
}

/// The means to open a slot. Its drop wipes it from memory. It is never printed.
#[derive(Clone)]
pub struct Opener {
    /// Where it is from, for messages.
    label: String,
    with: With,
}

#[derive(Clone)]
enum With {
    Key(Zeroizing<[u8; SECRET_BYTES]>),
    /// A passphrase, or a recovery key.
    Text(Zeroizing<Vec<u8>>),
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Opener({})", self.label)
    }
}

impl Opener {
    /// The key of a key file.
    pub fn key(label: &str, key: [u8; SECRET_BYTES]) -> Opener {
        Opener { label: label.into(), with: With::Key(Zeroizing::new(key)) }
    }

    /// A passphrase, or a recovery key as text.
    pub fn text(label: &str, text: Zeroizing<Vec<u8>>) -> Opener {
        Opener { label: label.into(), with: With::Text(text) }
    }

    /// Draws a recovery key. Also returns its written form.
    pub fn draw_recovery() -> Result<(Opener, Zeroizing<String>)> {
        let bytes: Zeroizing<[u8; RECOVERY_BYTES]> = Zeroizing::new(random::bytes()?);
        let text = write_recovery(&bytes);
        let opener = Opener::text("the recovery key", Zeroizing::new(text.as_bytes().to_vec()));
        Ok((opener, text))
    }

    /// Tells key files apart without saying anything of the key; passphrases have none.
    pub fn fingerprint(&self) -> Option<String> {
        let With::Key(key) = &self.with else { return None };
        let text = Zeroizing::new([&b"longhaul key file"[..], &**key].concat());
        Some(hex(&digest(&SHA256, &text).as_ref()[..8]))
    }

    /// How a message names it.
    pub fn describe(&self) -> String {
        match self.fingerprint() {
            Some(fingerprint) => format!("{} is {fingerprint}", self.label),
            None => format!("{} has another passphrase", self.label),
        }
    }
}

/// The means that opens a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlotKind {
    /// A key file.
    KeyFile,
    /// A passphrase.
    Passphrase,
    /// A recovery key.
    RecoveryKey,
}

impl SlotKind {
    /// Its name in lists, messages and formats.
    pub fn name(self) -> &'static str {
        match self {
            SlotKind::KeyFile => "key-file",
            SlotKind::Passphrase => "passphrase",
            SlotKind::RecoveryKey => "recovery-key",
        }
    }
}

/// The cost parameters of Argon2id for a passphrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Memory, in KiB.
    pub memory_kib: u32,
    /// Passes over it.
    pub passes: u32,
    /// Lanes.
    pub lanes: u32,
}

impl Cost {
    fn check(self) -> Result<()> {
        let Cost { memory_kib, passes, lanes } = self;
        let work = u64::from(memory_kib) * u64::from(passes);
        let sane = (1..=MAX_LANES).contains(&lanes)
            && (8 * lanes..=MAX_MEMORY_KIB).contains(&memory_kib)
            && (1..=MAX_PASSES).contains(&passes)
            && work <= MAX_WORK_KIB;
        if !sane {
            bail!(
                "a passphrase would take {memory_kib} KiB of memory, {passes} passes and {lanes} \
                 lanes, which is more than any longhaul asks for"
            );
        }
        Ok(())
    }
}

/// A slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// From 1 to [`MAX_SLOTS`].
    pub number: u32,
    /// What opens it.
    pub kind: SlotKind,
    /// Of a key file: its fingerprint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
    /// Of a passphrase: what a try of it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argon2id: Option<Cost>,
    /// Drawn at random, in hexadecimal digits.
    salt: String,
    /// Nonce, wrapped secret and tag, in hexadecimal digits.
    wrapped: String,
}

impl Slot {
    /// Wraps a secret.
    ///
    /// # Errors
    /// If a passphrase is too short or too long.
    pub fn wrap(number: u32, secret: &Secret, opener: &Opener) -> Result<Slot> {
        let (kind, key_file, argon2id) = match &opener.with {
            With::Key(_) => (SlotKind::KeyFile, opener.fingerprint(), None),
            With::Text(text) if read_recovery(text).is_some() => {
                (SlotKind::RecoveryKey, None, None)
            }
            With::Text(text) => {
                if !PASSPHRASE_BYTES.contains(&text.len()) {
                    bail!(
                        "a passphrase has {} to {} bytes, and this one has {}",
                        PASSPHRASE_BYTES.start(),
                        PASSPHRASE_BYTES.end(),
                        text.len()
                    );
                }
                (SlotKind::Passphrase, None, Some(COST))
            }
        };
        let salt: [u8; SALT_BYTES] = random::bytes()?;
        let mut slot =
            Slot { number, kind, key_file, argon2id, salt: hex(&salt), wrapped: String::new() };
        let cipher = slot.cipher(opener)?.context("a slot is not for what it is made of")?;
        slot.wrapped = hex(&seal(&cipher, &slot.purpose(), &*secret.0)?);
        Ok(slot)
    }

    /// The secret; `None` if that is not what opens this slot.
    ///
    /// # Errors
    /// If the slot makes no sense.
    pub fn open(&self, opener: &Opener) -> Result<Option<Secret>> {
        let Some(cipher) = self.cipher(opener)? else { return Ok(None) };
        let wrapped = unhex(&self.wrapped).unwrap_or_default();
        let opened = self::open(&cipher, &self.purpose(), wrapped);
        let secret = opened.and_then(|plain| plain.as_slice().try_into().ok());
        Ok(secret.map(|secret| Secret(Zeroizing::new(secret))))
    }

    /// Whether a slot can be like this.
    ///
    /// # Errors
    /// If not.
    pub fn check(&self) -> Result<()> {
        let fits = match self.kind {
            SlotKind::KeyFile => self.key_file.is_some() && self.argon2id.is_none(),
            SlotKind::Passphrase => self.key_file.is_none() && self.argon2id.is_some(),
            SlotKind::RecoveryKey => self.key_file.is_none() && self.argon2id.is_none(),
        };
        let number = (1..=MAX_SLOTS as u32).contains(&self.number);
        let short = self.key_file.as_ref().is_none_or(|text| text.len() <= 64);
        let salt = unhex(&self.salt).is_some_and(|salt| salt.len() == SALT_BYTES);
        if !fits || !number || !salt || !short || self.wrapped.len() > 256 {
            bail!("slot {} is none", self.number);
        }
        self.argon2id.map_or(Ok(()), Cost::check)
    }

    /// All of it, for the authentication of the list that it is in.
    pub fn fields(&self) -> Vec<Vec<u8>> {
        let cost = self.argon2id.map_or([0; 3], |cost| [cost.memory_kib, cost.passes, cost.lanes]);
        let mut fields = vec![self.number.to_le_bytes().to_vec(), self.kind.name().into()];
        fields.push(self.key_file.clone().unwrap_or_default().into());
        fields.extend(cost.map(|number| number.to_le_bytes().to_vec()));
        fields.extend([self.salt.clone().into(), self.wrapped.clone().into()]);
        fields
    }

    fn purpose(&self) -> String {
        format!("longhaul key slot {} {}", self.number, self.kind.name())
    }

    /// The cipher that wraps the secret, if this slot is for that opener at all.
    fn cipher(&self, opener: &Opener) -> Result<Option<LessSafeKey>> {
        let salt = unhex(&self.salt).unwrap_or_default();
        let input: Zeroizing<Vec<u8>> = match (self.kind, &opener.with) {
            (SlotKind::KeyFile, With::Key(key)) if opener.fingerprint() == self.key_file => {
                Zeroizing::new(key.to_vec())
            }
            (SlotKind::RecoveryKey, With::Text(text)) => match read_recovery(text) {
                Some(bytes) => Zeroizing::new(bytes.to_vec()),
                None => return Ok(None),
            },
            (SlotKind::Passphrase, With::Text(text)) if read_recovery(text).is_none() => {
                let cost = self.argon2id.context("a passphrase without its cost")?;
                cost.check()?;
                stretch(cost, text, &salt)?
            }
            _ => return Ok(None),
        };
        let key = expand(&salt, &input, &self.purpose())?;
        Ok(Some(cipher(&key)?))
    }
}

fn stretch(cost: Cost, text: &[u8], salt: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
    let Cost { memory_kib, passes, lanes } = cost;
    let params = Params::new(memory_kib, passes, lanes, Some(SECRET_BYTES));
    let params = params.map_err(|error| anyhow!("Argon2id: {error}"))?;
    let mut out = Zeroizing::new(vec![0; SECRET_BYTES]);
    let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let done = argon.hash_password_into(text, salt, &mut out);
    done.map_err(|error| anyhow!("Argon2id: {error}"))?;
    Ok(out)
}

fn expand(salt: &[u8], input: &[u8], purpose: &str) -> Result<Zeroizing<[u8; SECRET_BYTES]>> {
    let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(input);
    let mut out = Zeroizing::new([0; SECRET_BYTES]);
    let info = [purpose.as_bytes()];
    let filled = secret.expand(&info, hkdf::HKDF_SHA256).and_then(|key| key.fill(&mut *out));
    filled.map_err(|_| anyhow!("HKDF does not give a key"))?;
    Ok(out)
}

/// AES-256-GCM with that key.
pub fn cipher(key: &[u8; SECRET_BYTES]) -> Result<LessSafeKey> {
    let key = UnboundKey::new(&AES_256_GCM, key);
    Ok(LessSafeKey::new(key.map_err(|_| anyhow!("AES-256-GCM does not take the key"))?))
}

/// Encrypts: a nonce drawn at random, the ciphertext and its tag.
pub fn seal(cipher: &LessSafeKey, purpose: &str, plain: &[u8]) -> Result<Vec<u8>> {
    let nonce: [u8; NONCE_LEN] = random::bytes()?;
    let mut data = Zeroizing::new(plain.to_vec());
    let place = Nonce::assume_unique_for_key(nonce);
    let sealed = cipher.seal_in_place_separate_tag(place, Aad::from(purpose.as_bytes()), &mut data);
    let tag = sealed.map_err(|_| anyhow!("a key cannot be wrapped"))?;
    Ok([&nonce[..], &data, tag.as_ref()].concat())
}

/// Decrypts what [`seal`] gave, for the same purpose.
pub fn open(cipher: &LessSafeKey, purpose: &str, sealed: Vec<u8>) -> Option<Zeroizing<Vec<u8>>> {
    let mut sealed = Zeroizing::new(sealed);
    let (nonce, data) = sealed.split_first_chunk_mut::<NONCE_LEN>()?;
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let plain = cipher.open_in_place(nonce, Aad::from(purpose.as_bytes()), data).ok()?;
    Some(Zeroizing::new(plain.to_vec()))
}

/// Writes a recovery key: groups of four letters.
fn write_recovery(bytes: &[u8; RECOVERY_BYTES]) -> Zeroizing<String> {
    let mut all = Zeroizing::new(bytes.to_vec());
    all.extend_from_slice(&check_of(bytes));
    let mut text = Zeroizing::new(String::with_capacity(RECOVERY_LETTERS * 5 / 4));
    for n in 0..RECOVERY_LETTERS {
        let bits = (0..5).fold(0, |bits: u8, bit| {
            let at = n * 5 + bit;
            bits << 1 | (all[at / 8] >> (7 - at % 8) & 1)
        });
        if n > 0 && n.is_multiple_of(4) {
            text.push('-');
        }
        text.push(ALPHABET[usize::from(bits)].into());
    }
    text
}

/// Reads one, whatever its groups, with what is easily mistaken put right; `None` if it is none.
fn read_recovery(text: &[u8]) -> Option<Zeroizing<[u8; RECOVERY_BYTES]>> {
    if text.len() > 256 {
        return None;
    }
    let mut all = Zeroizing::new([0; RECOVERY_BYTES + 3]);
    let mut n = 0;
    for byte in text.iter().filter(|byte| !byte.is_ascii_whitespace() && **byte != b'-') {
        let letter = match byte.to_ascii_uppercase() {
            b'O' => b'0',
            b'I' | b'L' => b'1',
            letter => letter,
        };
        let value = ALPHABET.iter().position(|known| *known == letter)?;
        if n == RECOVERY_LETTERS {
            return None;
        }
        for bit in 0..5 {
            let at = n * 5 + bit;
            all[at / 8] |= ((value >> (4 - bit) & 1) as u8) << (7 - at % 8);
        }
        n += 1;
    }
    let (bytes, check) = all.split_first_chunk::<RECOVERY_BYTES>()?;
    let good = n == RECOVERY_LETTERS && *check == check_of(bytes);
    good.then(|| Zeroizing::new(*bytes))
}

/// 20 bits of a hash of a recovery key, and four of nothing.
fn check_of(bytes: &[u8; RECOVERY_BYTES]) -> [u8; 3] {
    let mut text = [&b"longhaul recovery key"[..], bytes].concat();
    let hash = digest(&SHA256, &text);
    text.zeroize();
    let hash = hash.as_ref();
    [hash[0], hash[1], hash[2] & 0xf0]
}

/// In hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Out of hexadecimal digits.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}
