//! Requests about volumes that this store does not know. They wait for a look at the location,
//! because another store may have created the volume.

use super::super::directory::Directory;
use super::super::request::{Decision, Request, Target};
use super::scope::TenantScope;
use longhaul_base::limits::{MAX_STRANGE_BYTES, STRANGE_FRAME_BYTES};
use std::collections::HashMap;

/// Requests that wait for a look at the location.
#[derive(Default)]
pub(in super::super) struct UnknownVolumes {
    waiting: Vec<Request>,
    /// Bytes of each session, heads included.
    bytes: HashMap<u64, usize>,
}

impl UnknownVolumes {
    /// Holds a request about an unknown volume, or about one that the session may not see under its
    /// known name. If too much of a session waits already, passes the request: then the answer is
    /// that the volume does not exist.
    pub fn decide(
        &mut self,
        request: Request,
        directory: &Directory,
        scope: &TenantScope,
    ) -> Decision {
        let early = matches!(request.target, Target::Early(_));
        let seen = || scope.covers(&request, directory);
        if early || !is_unknown(&request.target, directory) && seen() {
            return Decision::Pass(request);
        }
        let bytes = self.bytes.entry(request.session()).or_default();
        let more = request.body.payload.len() + STRANGE_FRAME_BYTES;
        if *bytes + more > MAX_STRANGE_BYTES {
            return Decision::Pass(request);
        }
        *bytes += more;
        self.waiting.push(request);
        Decision::Hold
    }

    /// A session is over.
    pub fn forget(&mut self, session: u64) {
        if self.bytes.remove(&session).is_some() {
            self.waiting.retain(|request| request.session() != session);
        }
    }

    /// The store has looked at the location: gives all requests back.
    pub fn take(&mut self) -> Vec<Request> {
        self.bytes.clear();
        std::mem::take(&mut self.waiting)
    }
}

/// Whether a request is about a volume that this store does not know.
fn is_unknown(target: &Target, directory: &Directory) -> bool {
    match target {
        Target::Session | Target::Stores | Target::Tenants | Target::Catalog => false,
        Target::Volume(_) | Target::VolumeOrSnapshot(_) | Target::Objects(_) => {
            target.volume_name().is_some_and(|name| !directory.has_name(name))
        }
        Target::Attribute(volume) => !directory.has_volume(*volume),
        Target::Id(id) => !directory.has(*id),
        // No lookup for what may be the copy of an old packet.
        Target::Early(_) => false,
        Target::Copy { from, into } => !directory.has(*from) || !directory.has_volume(*into),
    }
}
