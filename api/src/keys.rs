//! Keys of encrypted volumes: how to open them, and what commands do with them.
//!
//! A volume is encrypted if it has the attribute `keys`: a [list](list) of its data keys. A secret
//! wraps the data keys. [Slots](slots) wrap the secret, for key files, passphrases and recovery
//! keys. The store keeps the attribute and can read none of it. Any host that can open a slot can
//! attach the volume. A change of slots touches no data. `docs/formats.md` has the format.

pub mod given;
mod list;
mod progress;
mod slots;
mod stated;
#[cfg(test)]
mod tests;

pub use given::Given;
pub use list::{KeyList, Owner};
pub use progress::{PROGRESS_ATTRIBUTE, Progress};
pub use slots::{Opener, Secret, Slot};
pub use stated::{
    VERSIONS_ATTRIBUTE, next as next_statement, open as open_statement, seal as seal_statement,
};

use crate::attributes;
use anyhow::{Context as _, Result, bail};
use list::Unlocked;
use longhaul_base::files;
use longhaul_base::random;
use longhaul_core::block::Epoch;
use longhaul_core::pack::{DataKey, Keys};
use longhaul_core::record::packed::SALT_BYTES;
use longhaul_core::wire::link::{VolumeError, VolumeInfo};
use longhaul_link::Requests;
use slots::{MAX_SLOTS, hex};
use std::collections::BTreeMap;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use zeroize::Zeroizing;

/// The attribute of a volume that holds its list of keys.
pub const ATTRIBUTE: &str = "keys";

/// Draws a key and writes it to a new file.
///
/// # Errors
/// If the file exists, or the write fails.
pub fn create(path: &Path) -> Result<()> {
    let text = Zeroizing::new(format!("{}\n", hex(&random::secret()?)));
    let write = || -> std::io::Result<()> {
        use std::io::Write as _;
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        files::sync_dir(
            path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")),
        )
    };
    write().with_context(|| format!("cannot write the key file {}", path.display()))
}

/// Opens the keys in the attribute of a volume for a new attach, and the secret that wraps them.
/// `None` if the volume has no keys: then the store says that it is not encrypted. `known` is the
/// secret that opened the keys before.
///
/// # Errors
/// If nothing opens them, they are another volume's, or the attribute is malformed.
pub fn open(
    owner: &Owner,
    data: &[u8],
    openers: &[Opener],
    known: Option<&Secret>,
) -> Result<Option<(Keys, Secret)>> {
    if data.is_empty() {
        return Ok(None);
    }
    let unlocked = KeyList::parse(data)?.unlock(owner, openers, known)?;
    Ok(Some((attachment(&unlocked)?, unlocked.secret)))
}

/// The keys of a list, for a new attachment.
fn attachment(unlocked: &Unlocked) -> Result<Keys> {
    let Unlocked { keys, parents, retires, .. } = unlocked;
    let salt: [u8; SALT_BYTES] = random::bytes()?;
    let keys = Keys::new(salt, keys.clone()).context("the volume is encrypted and has no keys")?;
    Ok(keys.with_parents(parents.clone()).with_retiring(*retires))
}

/// The keys of a volume, for a command.
///
/// # Errors
/// If the store does not answer, or nothing opens the keys. Also if the command has keys,
/// passphrases or the like and the volume is not encrypted.
pub async fn of_volume(
    requests: &Requests,
    info: &VolumeInfo,
    given: &Given,
) -> Result<Option<Keys>> {
    let data = get(requests, info).await?;
    let named = || format!("volume {}", info.name);
    if data.is_empty() {
        if !given.may_be_plain() {
            bail!(
                "{}: the store says that it is not encrypted, and a key is given; if it is not \
                 meant to be, say --plain",
                named()
            );
        }
        return Ok(None);
    }
    let opened = open(&owner(requests, info), &data, given.openers()?, None);
    Ok(opened.with_context(named)?.map(|(keys, _)| keys))
}

/// Gives a new volume its first data key, with a slot for each of `openers`.
///
/// # Errors
/// If the store fails, or a host has attached the volume meanwhile.
pub async fn encrypt(requests: &Requests, info: &VolumeInfo, openers: &[Opener]) -> Result<()> {
    let keys = BTreeMap::from([(1, DataKey::new(random::secret()?))]);
    let secret = Secret::draw()?;
    let unlocked = Unlocked { keys, parents: Vec::new(), secret, retires: false };
    let slots = (1..).zip(openers);
    let slots: Result<_> =
        slots.map(|(number, opener)| Slot::wrap(number, &unlocked.secret, opener)).collect();
    let list = KeyList::seal(&owner(requests, info), &unlocked, slots?)?;
    // No epoch has begun, so there is no plain text.
    set(requests, info, 0, (&[], &list)).await
}

/// The keys that a clone inherits.
pub struct Heritage {
    slots: Vec<Slot>,
    unlocked: Unlocked,
}

/// The keys of a volume, for clones of it; `None` if it is not encrypted.
///
/// # Errors
/// If the store does not answer, or nothing opens them.
pub async fn for_clones(
    requests: &Requests,
    info: &VolumeInfo,
    given: &Given,
) -> Result<Option<Heritage>> {
    let data = get(requests, info).await?;
    if data.is_empty() {
        return Ok(None);
    }
    let list = KeyList::parse(&data)?;
    let mut unlocked = list.unlock(&owner(requests, info), given.required()?, None)?;
    unlocked.parents.insert(0, info.id);
    // A clone shares data of its parent, so it does not retire keys by itself.
    unlocked.retires = false;
    Ok(Some(Heritage { slots: list.slots, unlocked }))
}

impl Heritage {
    /// Gives the keys to a new clone. The same slots open them.
    ///
    /// # Errors
    /// If the store fails, or a host has attached the clone meanwhile.
    pub async fn pass_on(self, requests: &Requests, clone: &VolumeInfo) -> Result<()> {
        let list = KeyList::seal(&owner(requests, clone), &self.unlocked, self.slots)?;
        // It goes on in the epoch of its parent, which it says once it is open.
        let epoch = attributes::epoch(requests, &clone.name).await?;
        set(requests, clone, epoch, (&[], &list)).await
    }
}

/// An opened list, for a change.
pub struct Change<'a> {
    requests: &'a Requests,
    info: &'a VolumeInfo,
    /// As the store gave it out.
    found: Vec<u8>,
    list: KeyList,
    unlocked: Unlocked,
    owner: Owner,
}

impl<'a> Change<'a> {
    /// Opens the list of a volume. With `was`, the list has to be bound to that name.
    ///
    /// # Errors
    /// If the volume is not encrypted, nothing opens its keys, or the store fails.
    pub async fn begin(
        requests: &'a Requests,
        info: &'a VolumeInfo,
        given: &Given,
        was: Option<&str>,
    ) -> Result<Change<'a>> {
        let openers = given.required()?;
        let found = get(requests, info).await?;
        let list = parse(&found)?;
        let owner = owner(requests, info);
        let name = was.map_or(owner.name.clone(), |was| requests.canonical(was));
        let unlocked = list.unlock(&Owner { name, ..owner.clone() }, openers, None)?;
        Ok(Change { requests, info, found, list, unlocked, owner })
    }

    /// A new data key for new writes; its number.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn rotate(mut self) -> Result<u32> {
        let newest = self.draw()?;
        self.save().await?;
        Ok(newest)
    }

    /// Asks the host of the volume, and every later one, to encrypt content under older data keys
    /// anew with the newest one. If the volume has only one key, draws another. Returns its number.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn begin_retiring(mut self) -> Result<u32> {
        let newest = match self.numbers()[..] {
            [_] => self.draw()?,
            ref several => several.iter().copied().max().unwrap_or(0),
        };
        self.unlocked.retires = true;
        self.save().await?;
        Ok(newest)
    }

    fn draw(&mut self) -> Result<u32> {
        let newest = self.unlocked.keys.keys().next_back().copied().unwrap_or(0) + 1;
        self.unlocked.keys.insert(newest, DataKey::new(random::secret()?));
        Ok(newest)
    }

    /// Whether hosts have to encrypt content under older data keys anew with the newest one.
    pub fn retires(&self) -> bool {
        self.unlocked.retires
    }

    /// The progress that the host of the volume reports about that, if it has in this epoch.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn progress(&self) -> Result<Option<Progress>> {
        let data = attributes::get(self.requests, self.info, PROGRESS_ATTRIBUTE).await;
        let data = data.context("cannot ask how far the host is")?;
        let said = Progress::open(&attachment(&self.unlocked)?, self.info.id, &data);
        let newest = self.numbers().into_iter().max();
        Ok(said.filter(|said| said.epoch == epoch(self.info) && Some(said.key) == newest))
    }

    /// Numbers of the data keys.
    pub fn numbers(&self) -> Vec<u32> {
        self.list.numbers()
    }

    /// Leaves only the newest data key in the list: no block is under another one. The numbers of
    /// the others.
    ///
    /// # Errors
    /// If the store fails, or another epoch has begun.
    pub async fn retire(mut self) -> Result<Vec<u32>> {
        let Some((newest, key)) = self.unlocked.keys.pop_last() else { return Ok(Vec::new()) };
        let older: Vec<u32> = self.unlocked.keys.keys().copied().collect();
        self.unlocked.keys = BTreeMap::from([(newest, key)]);
        let asked = std::mem::take(&mut self.unlocked.retires);
        if !older.is_empty() || asked {
            self.save().await?;
        }
        Ok(older)
    }

    /// A new secret, which only `new` opens.
    ///
    /// # Errors
    /// If there are other slots, whose openers are not here, or the store fails.
    pub async fn replace(mut self, new: &Opener) -> Result<()> {
        if self.list.slots.len() > 1 {
            bail!(
                "the volume has {} key slots, and a new key file would replace all of them: remove \
                 the others first (`longhaul volume key remove`), or put the new one beside them \
                 (`longhaul volume key add`)",
                self.list.slots.len()
            );
        }
        self.unlocked.secret = Secret::draw()?;
        self.list.slots = vec![Slot::wrap(1, &self.unlocked.secret, new)?];
        self.save().await
    }

    /// Adds a slot. Returns its number.
    ///
    /// # Errors
    /// If all slots are in use, or the store fails.
    pub async fn add(mut self, new: &Opener) -> Result<u32> {
        let taken = |number: &u32| self.list.slots.iter().any(|slot| slot.number == *number);
        let free = (1..=MAX_SLOTS as u32).find(|number| !taken(number));
        let number = free.with_context(|| format!("all {MAX_SLOTS} key slots are taken"))?;
        if new.fingerprint().is_some_and(|new| {
            self.list.slots.iter().any(|slot| slot.key_file.as_deref() == Some(&new))
        }) {
            bail!("that key file has a slot already");
        }
        self.list.slots.push(Slot::wrap(number, &self.unlocked.secret, new)?);
        self.save().await?;
        Ok(number)
    }

    /// Takes a slot away.
    ///
    /// # Errors
    /// If there is none, it is the last one, or the store fails.
    pub async fn remove(mut self, number: u32) -> Result<()> {
        let before = self.list.slots.len();
        self.list.slots.retain(|slot| slot.number != number);
        if self.list.slots.len() == before {
            bail!(
                "no key slot {number}: `longhaul volume key list` shows the existing \
                 ones"
            );
        }
        if self.list.slots.is_empty() {
            bail!(
                "key slot {number} is the last one, and without it nobody can read the volume: add \
                 another one first"
            );
        }
        self.save().await
    }

    /// The list, which is authentic.
    pub fn into_list(self) -> KeyList {
        self.list
    }

    /// Binds the list to the name that the volume has now.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn rebind(self) -> Result<()> {
        self.save().await
    }

    /// Another change since the read of the list must not get lost: it may add a key that a host
    /// writes with. So the store replaces only the list that this command has read.
    async fn save(self) -> Result<()> {
        let list = KeyList::seal(&self.owner, &self.unlocked, self.list.slots)?;
        let set = set(self.requests, self.info, epoch(self.info), (&self.found, &list)).await;
        match &set {
            Err(error) if matches!(error.downcast_ref(), Some(VolumeError::Changed)) => bail!(
                "the list of the volume's keys has been changed meanwhile, and this command has \
                 changed nothing: look at it (`longhaul volume key list`), and give the command \
                 again"
            ),
            _ => set,
        }
    }
}

/// Reads the list of the keys of an encrypted volume. Nothing in it is authentic before it is
/// opened.
///
/// # Errors
/// If the volume is not encrypted, the list is malformed, or the store fails.
pub async fn read(requests: &Requests, info: &VolumeInfo) -> Result<KeyList> {
    parse(&get(requests, info).await?)
}

fn parse(data: &[u8]) -> Result<KeyList> {
    if data.is_empty() {
        bail!("it is not encrypted");
    }
    KeyList::parse(data)
}

/// Whether the store says that a volume is encrypted.
///
/// # Errors
/// If it does not say.
pub async fn is_encrypted(requests: &Requests, info: &VolumeInfo) -> Result<bool> {
    Ok(!get(requests, info).await?.is_empty())
}

fn owner(requests: &Requests, info: &VolumeInfo) -> Owner {
    Owner { name: requests.canonical(&info.name), volume: info.id }
}

fn epoch(info: &VolumeInfo) -> Epoch {
    info.live.as_ref().map_or(0, |live| live.epoch)
}

async fn get(requests: &Requests, info: &VolumeInfo) -> Result<Vec<u8>> {
    let data = attributes::get(requests, info, ATTRIBUTE).await;
    data.context("cannot ask for the volume's keys")
}

async fn set(
    requests: &Requests,
    info: &VolumeInfo,
    epoch: Epoch,
    (old, list): (&[u8], &KeyList),
) -> Result<()> {
    let value = (Some(old), list.encode()?);
    let set = attributes::set(requests, info, epoch, ATTRIBUTE, value).await;
    set.context("cannot store the volume's keys")
}
