//! Decides which volume has a name. A name is an object created put-if-absent, so one of two
//! volumes gets it.

use super::listing::{CatalogEntry, entry};
use super::{Facts, Halt, Note, READ_AT_ONCE, failed, invalid};
use crate::block::VolumeId;
use crate::store::VolumeSpec;
use crate::store::catalog::{self, VOLUMES_PREFIX};
use crate::store::object::{GetError, PutError};
use crate::wire::link::VolumeError;
use bytes::Bytes;
use std::collections::BTreeSet;

/// The reason why a store did not create a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotCreated {
    /// What to answer.
    pub error: VolumeError,
    /// The volume that has the name. The caller may not know of it. Another store may have created
    /// it, or an earlier attempt of this store without an answer.
    pub taken: Option<Box<CatalogEntry>>,
}

impl From<VolumeError> for NotCreated {
    fn from(error: VolumeError) -> Self {
        NotCreated { error, taken: None }
    }
}

impl From<VolumeError> for Halt<NotCreated> {
    fn from(error: VolumeError) -> Self {
        Halt::Failed(error.into())
    }
}

impl From<Halt> for Halt<NotCreated> {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::Unknown => Halt::Unknown,
            Halt::Failed(error) => error.into(),
        }
    }
}

/// Beginning of the keys of the names of all volumes that have a tenant.
#[must_use]
pub fn of_tenants() -> String {
    format!("{VOLUMES_PREFIX}_")
}

/// Beginning of the keys of the names of a tenant's volumes.
#[must_use]
pub fn of_tenant(tenant: &str) -> String {
    format!("{VOLUMES_PREFIX}_{tenant}/")
}

/// Gives a volume its name: from then on the volume exists.
///
/// # Errors
/// If another volume has the name, or the store cannot write the objects.
pub(super) fn put_name(facts: &mut Facts<'_>, spec: &VolumeSpec) -> Result<(), Halt<NotCreated>> {
    let data = Bytes::from(catalog::encode_spec(spec));
    let key = catalog::name_key(&spec.name);
    let mut result = facts.put(&key, data.clone())?;
    if let Err(PutError::Failed(_)) = result {
        // The object may exist all the same, perhaps not durably. A second put settles that.
        result = facts.put(&key, data)?;
    }
    match result {
        Ok(()) => Ok(()),
        Err(PutError::Failed(error)) => Err(VolumeError::from(error).into()),
        // If the answer to a put got lost, this store's own object is there. The description
        // tells.
        Err(PutError::Exists) => match Halt::caught(entry(facts, &key))? {
            Ok(Some(entry)) if entry.spec == *spec => Ok(()),
            Ok(Some(taken)) => {
                let (error, taken) = (VolumeError::Exists, Some(Box::new(taken)));
                Err(Halt::Failed(NotCreated { error, taken }))
            }
            Ok(None) => Err(failed("the name is just being freed; try again").into()),
            Err(error) => Err(failed(error).into()),
        },
    }
}

/// The volume of a name; `None` if there is none.
///
/// # Errors
/// If the store cannot read its description.
pub(super) fn named(facts: &mut Facts<'_>, name: &str) -> Result<Option<VolumeSpec>, Halt> {
    let key = catalog::name_key(name);
    match facts.get(&key)? {
        Ok(bytes) => Ok(Some(catalog::decode_spec(&key, &bytes).map_err(failed)?)),
        Err(GetError::NotFound) => Ok(None),
        Err(error) => Err(failed(error).into()),
    }
}

/// The volumes of several names, in the order of `names`; `None` for a name without a volume.
///
/// # Errors
/// If the store cannot read a description.
pub(super) fn named_all(
    facts: &mut Facts<'_>,
    names: &[&str],
) -> Result<Vec<Option<VolumeSpec>>, Halt> {
    let keys: Vec<String> = names.iter().map(|name| catalog::name_key(name)).collect();
    let read = facts.get_all(&keys, READ_AT_ONCE)?.map_err(VolumeError::from)?;
    let mut found = Vec::with_capacity(keys.len());
    for (key, read) in keys.iter().zip(read) {
        found.push(match read {
            Ok(bytes) => Some(catalog::decode_spec(key, &bytes).map_err(failed)?),
            Err(GetError::NotFound) => None,
            Err(error) => return Err(failed(error).into()),
        });
    }
    Ok(found)
}

/// Whether there is a volume of that name and identity.
pub(super) fn is_named(facts: &mut Facts<'_>, spec: &VolumeSpec) -> Result<bool, Halt> {
    Ok(named(facts, &spec.name)?.is_some_and(|there| there.id == spec.id))
}

/// Deletes the name of a volume that no engine has open: from then on the volume is gone. If
/// another volume has the name by now, the name stays. A deletion of an object does not depend on
/// its content, so this reads the object first.
///
/// # Errors
/// If the store cannot delete the name; the volume then still exists.
pub(super) fn delete_name(facts: &mut Facts<'_>, spec: &VolumeSpec) -> Result<(), Halt> {
    if !is_named(facts, spec)? {
        return Ok(());
    }
    let key = catalog::name_key(&spec.name);
    if let Err(error) = facts.delete(&key)? {
        // The deletion may have taken effect all the same. If the store served the volume without a
        // name, the volume would take writes until the next start, and then lose them.
        match facts.get(&key)? {
            Err(GetError::NotFound) => {
                facts.note(Note::Warning(format!("deleting {key}: {error}; it is gone")));
            }
            _ => return Err(VolumeError::from(error).into()),
        }
    }
    Ok(())
}

/// The descriptions of the volumes whose keys begin with `prefix`, without damaged ones.
///
/// # Errors
/// If the store cannot read them.
pub(super) fn specs_of(facts: &mut Facts<'_>, prefix: &str) -> Result<Vec<VolumeSpec>, Halt> {
    Ok(sound_and_damaged(facts, prefix)?.0)
}

/// The descriptions of the volumes whose keys begin with `prefix`, and the keys of damaged ones.
///
/// # Errors
/// If the store cannot read them.
pub(super) fn sound_and_damaged(
    facts: &mut Facts<'_>,
    prefix: &str,
) -> Result<(Vec<VolumeSpec>, Vec<String>), Halt> {
    let list = facts.list(prefix)?.map_err(VolumeError::from)?;
    let keys: Vec<String> = list.iter().map(|meta| meta.key.clone()).collect();
    let read = facts.get_all(&keys, READ_AT_ONCE)?.map_err(VolumeError::from)?;
    let (mut sound, mut damaged) = (Vec::new(), Vec::new());
    for (key, read) in keys.into_iter().zip(read) {
        match read {
            Ok(bytes) => match catalog::decode_spec(&key, &bytes) {
                Ok(spec) => sound.push(spec),
                Err(_) => damaged.push(key),
            },
            Err(GetError::NotFound) => {}
            Err(_) => damaged.push(key),
        }
    }
    Ok((sound, damaged))
}

/// Fails if any of these clones of a tenant's volume exists, by whatever name.
///
/// # Errors
/// The names of the clones, or the reason why the store cannot read one.
pub(super) fn has_no_clones(
    facts: &mut Facts<'_>,
    tenant: Option<&str>,
    clones: &BTreeSet<VolumeId>,
) -> Result<(), Halt> {
    if clones.is_empty() {
        return Ok(());
    }
    let (specs, damaged) = sound_and_damaged(facts, VOLUMES_PREFIX)?;
    // A clone has the tenant of its parent.
    let prefix = tenant.map_or_else(|| VOLUMES_PREFIX.to_owned(), of_tenant);
    let of_nobody = |key: &String| tenant.is_some() || !key.starts_with(&of_tenants());
    if let Some(key) = damaged.iter().find(|key| key.starts_with(&prefix) && of_nobody(key)) {
        let why = "which may be one: bring it back from a copy first";
        return Err(invalid(format!("it has clones, and {key} is damaged, {why}")).into());
    }
    let there = specs.into_iter().filter(|spec| clones.contains(&spec.id));
    let mut there: Vec<String> = there.map(|spec| spec.name).collect();
    if there.is_empty() {
        return Ok(());
    }
    there.sort_unstable();
    let there = there.join(", ");
    Err(invalid(format!("clones of it share its data: delete {there} first")).into())
}

/// [`put_name`], [`delete_name`], [`named`] and [`has_no_clones`] as procedures of their own.
pub mod alone {
    use super::{NotCreated, VolumeId, VolumeSpec};
    use crate::store::fleet::{Facts, Halt, Known, Procedure};
    use crate::wire::link::VolumeError;
    use std::collections::BTreeSet;

    /// Gives a volume its name, whatever the limits of its tenant.
    #[derive(Clone, Debug)]
    pub struct PutName(pub VolumeSpec);

    impl Procedure for PutName {
        type Outcome = Result<(), NotCreated>;

        fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
            Halt::caught(super::put_name(facts, &self.0))
        }
    }

    /// Deletes the name of a volume.
    #[derive(Clone, Debug)]
    pub struct DeleteName(pub VolumeSpec);

    impl Procedure for DeleteName {
        type Outcome = Result<(), VolumeError>;

        fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
            Halt::caught(super::delete_name(facts, &self.0))
        }
    }

    /// Finds the volume of a name.
    #[derive(Clone, Debug)]
    pub struct FindName(pub String);

    impl Procedure for FindName {
        type Outcome = Result<Option<VolumeSpec>, VolumeError>;

        fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
            Halt::caught(super::named(facts, &self.0))
        }
    }

    /// Fails if any of these clones of a tenant's volume exists.
    #[derive(Clone, Debug)]
    pub struct HasNoClones {
        /// The tenant.
        pub tenant: Option<String>,
        /// The clones that the parent's log knows of.
        pub clones: BTreeSet<VolumeId>,
    }

    impl Procedure for HasNoClones {
        type Outcome = Result<(), VolumeError>;

        fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome> {
            Halt::caught(super::has_no_clones(facts, self.tenant.as_deref(), &self.clones))
        }
    }
}
