//! The means of operators to open volumes: key files, passphrases in files or from a terminal,
//! recovery keys.

use super::slots::{Opener, SECRET_BYTES, unhex};
use anyhow::{Context as _, Result, bail};
use longhaul_base::Usage;
use rustix::termios::{self, LocalModes, OptionalActions};
use std::cell::OnceCell;
use std::io::{BufRead as _, IsTerminal as _, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Most bytes of a key file or of a file with a passphrase.
const MAX_FILE_BYTES: u64 = 4096;

/// The means that a command has. It reads them when it needs them, and once.
pub struct Given {
    key_file: Option<PathBuf>,
    passphrase_file: Option<PathBuf>,
    plain: bool,
    openers: OnceCell<Vec<Opener>>,
}

impl Given {
    /// A key file, and a file whose first line is a passphrase. `plain`: a volume may be one that
    /// is not encrypted.
    pub fn new(key_file: Option<PathBuf>, passphrase_file: Option<PathBuf>, plain: bool) -> Given {
        Given { key_file, passphrase_file, plain, openers: OnceCell::new() }
    }

    /// Whether there is anything.
    pub fn is_any(&self) -> bool {
        self.key_file.is_some() || self.passphrase_file.is_some()
    }

    /// Whether a volume may be one that is not encrypted.
    pub fn may_be_plain(&self) -> bool {
        self.plain || !self.is_any()
    }

    /// The means, perhaps none.
    ///
    /// # Errors
    /// If a file is invalid.
    pub fn openers(&self) -> Result<&[Opener]> {
        if let Some(openers) = self.openers.get() {
            return Ok(openers);
        }
        let mut openers = Vec::new();
        if let Some(path) = &self.key_file {
            openers.push(key_file(path)?);
        }
        if let Some(path) = &self.passphrase_file {
            openers.push(passphrase(path, false)?);
        }
        Ok(self.openers.get_or_init(|| openers))
    }

    /// The means, at least one.
    ///
    /// # Errors
    /// If there are none, or a file is invalid.
    pub fn required(&self) -> Result<&[Opener]> {
        if !self.is_any() {
            bail!(Usage(
                "no key file: give --key-file FILE (`longhaul credential new-key` makes one) or \
                 --passphrase-file FILE"
                    .into()
            ));
        }
        self.openers()
    }
}

/// Reads a key file.
///
/// # Errors
/// If it is unreadable, other users may read it, or it holds no key.
pub fn key_file(path: &Path) -> Result<Opener> {
    let shown = path.display();
    let text = private(path, "key file")?;
    let text = std::str::from_utf8(&text).ok().map(str::trim).unwrap_or_default();
    let key = unhex(text).map(Zeroizing::new);
    let key = key.and_then(|key| <[u8; SECRET_BYTES]>::try_from(key.as_slice()).ok());
    let key = key.with_context(|| {
        format!("{shown} is not a key file: 64 hexadecimal digits are expected")
    })?;
    Ok(Opener::key(&shown.to_string(), key))
}

/// Reads a passphrase or recovery key: the first line of a file. `-` asks for it on the terminal,
/// twice for a `new` one, or reads standard input.
///
/// # Errors
/// If the file is unreadable, or other users may read it.
pub fn passphrase(path: &Path, new: bool) -> Result<Opener> {
    if path.as_os_str() != "-" {
        let text = private(path, "file with the passphrase")?;
        return Ok(Opener::text(&path.display().to_string(), line(&text)));
    }
    if !std::io::stdin().is_terminal() {
        let mut text = Zeroizing::new(Vec::new());
        let mut input = std::io::stdin().lock().take(MAX_FILE_BYTES);
        input.read_until(b'\n', &mut text).context("cannot read the passphrase")?;
        return Ok(Opener::text("standard input", line(&text)));
    }
    let text = ask("passphrase: ")?;
    if new && *ask("once more: ")? != *text {
        bail!("these were two different passphrases");
    }
    Ok(Opener::text("the terminal", text))
}

/// The content of a file that only its owner may read.
fn private(path: &Path, what: &str) -> Result<Zeroizing<Vec<u8>>> {
    let shown = path.display();
    let read = || -> std::io::Result<(u32, Zeroizing<Vec<u8>>)> {
        let file = std::fs::File::open(path)?;
        let mode = file.metadata()?.permissions().mode();
        let mut text = Zeroizing::new(Vec::with_capacity(MAX_FILE_BYTES as usize));
        file.take(MAX_FILE_BYTES).read_to_end(&mut text)?;
        Ok((mode, text))
    };
    let (mode, text) = read().with_context(|| format!("cannot read the {what} {shown}"))?;
    if mode & 0o077 != 0 {
        bail!("others can read the {what} {shown}: chmod 600 it");
    }
    Ok(text)
}

fn line(text: &[u8]) -> Zeroizing<Vec<u8>> {
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Zeroizing::new(line.strip_suffix(b"\r").unwrap_or(line).to_vec())
}

/// Turns the echo of typed text on again, whatever happens.
struct Echo(termios::Termios);

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(std::io::stdin(), OptionalActions::Flush, &self.0);
        eprintln!();
    }
}

fn ask(prompt: &str) -> Result<Zeroizing<Vec<u8>>> {
    let silent = || -> rustix::io::Result<Echo> {
        let shown = termios::tcgetattr(std::io::stdin())?;
        let mut hidden = shown.clone();
        hidden.local_modes -= LocalModes::ECHO;
        termios::tcsetattr(std::io::stdin(), OptionalActions::Flush, &hidden)?;
        Ok(Echo(shown))
    };
    eprint!("{prompt}");
    let _echo = silent().context("the terminal cannot hide typed text")?;
    let mut text = Zeroizing::new(Vec::with_capacity(MAX_FILE_BYTES as usize));
    let mut input = std::io::stdin().lock().take(MAX_FILE_BYTES);
    input.read_until(b'\n', &mut text).context("cannot read the passphrase")?;
    Ok(line(&text))
}
