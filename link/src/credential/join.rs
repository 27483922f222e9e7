//! How another store becomes one of an installation.
//!
//! The operator carries a *token* to it: a credential that is good for one question, once, for an
//! hour, at the store that made it. It pins the CA, and has nothing of the CA's key. The new store
//! makes a key of its own and asks, with the token, to have a certificate signed for it. Since each
//! store of an installation signs, the answer has the CA's key, over the connection that token and
//! pinned CA have authenticated.

use super::authority::{Leaf, Pair, STORE_LIFE, new_leaf, sign};
use super::directory::directory;
use super::file::{self, Credential};
use super::grant::{Kind, Role};
use super::installation::{change, grant, installation, own_name, store_grant};
use super::issued::{Accepted, IssuedFile};
use super::seen::{bare, certificate_of, inspect};
use anyhow::{Context as _, Result, anyhow, bail};
use longhaul_base::files;
use rcgen::{CertificateParams, CertificateSigningRequestParams, KeyPair};
use rustls_pki_types::PrivatePkcs8KeyDer;
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

/// How long a token is good for.
const TOKEN_LIFE: Duration = Duration::hours(1);
/// Largest request for a certificate, in bytes.
const MAX_REQUEST_BYTES: usize = 4096;
/// Most bytes of the list in an answer: it has to fit the head of a frame.
const MAX_LIST_BYTES: usize = 192 << 10;

/// Makes a token for another store. The store of this state directory has to run when the other one
/// uses it.
///
/// # Errors
/// If `state` is not the directory of a store that has run, or this process cannot write it.
pub fn invite(state: &Path) -> Result<String> {
    let (ca, _) = installation(state)?;
    change(state, |issued| {
        let own = own_name(state, issued)?;
        let Some(address) = issued.stores.first().cloned() else {
            bail!("{} has never been started: start it first", state.display());
        };
        let of = Leaf::Client { name: "join", tenant: None };
        let token = new_leaf(&ca, OffsetDateTime::now_utc(), TOKEN_LIFE, of)?;
        let serial = inspect(&token.certificate)?.serial;
        let name = format!("join-{}", serial.get(..8).unwrap_or_default());
        let mut grant = grant(&token.certificate, &name, Kind::Join, Role::Read, Vec::new())?;
        grant.store = Some(own);
        issued.list.accepted.insert(serial, grant);
        let what = "become a store of the installation, once, within an hour";
        Ok((true, file::text(&[address], &ca.certificate, &token, what)?))
    })
}

/// A store that is to join, with a key of its own.
pub struct Joining {
    dir: PathBuf,
    token: Credential,
    key: PrivatePkcs8KeyDer<'static>,
    request: Vec<u8>,
}

impl Joining {
    /// To be one of the installation of a token, in this state directory. Writes nothing.
    ///
    /// # Errors
    /// If the text is no token, is past its time, or `state` is that of another installation.
    pub fn begin(state: &Path, text: &str) -> Result<Joining> {
        let token = Credential::parse(text)
            .context("this is no token: give the output of `longhaul store invite`")?;
        if token.not_after <= OffsetDateTime::now_utc() {
            bail!(
                "the token has expired, as it is good for an hour: have `longhaul store invite` \
                 make another one"
            );
        }
        let dir = directory(state);
        if let Some(other) = Pair::read(&dir.join("ca.pem"))?
            && other.certificate != token.ca
        {
            bail!(
                "{} belongs to a store of another installation: give another directory with --state",
                state.display()
            );
        }
        let key = KeyPair::generate()?;
        let request = CertificateParams::default().serialize_request(&key)?.der().to_vec();
        Ok(Joining { dir, token, key: key.serialize_der().into(), request })
    }

    /// The token for the request.
    pub fn token(&self) -> &Credential {
        &self.token
    }

    /// The request to sign.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Makes the state directory that of a store of the installation; `store` is its identity.
    ///
    /// # Errors
    /// If the answer is not for this store, or this process cannot write a file.
    pub fn finish(self, store: &str, signed: Signed) -> Result<()> {
        let Joining { dir, token, key, .. } = self;
        let own = Pair { certificate: certificate_of(&signed.certificate)?, key };
        let ca = Pair { certificate: token.ca, key: signed.ca_key.into() };
        // That they belong together shows when something is signed with it.
        new_leaf(&ca, OffsetDateTime::now_utc(), STORE_LIFE, Leaf::Store)
            .context("the store sent a key that is not of the CA of the token")?;
        files::create_dir(&dir)?;
        // First, since a start with the CA alone would hand out credentials of its own.
        let mut issued = IssuedFile::read(&dir)?.unwrap_or_else(|| IssuedFile::new(&[]));
        if !signed.list.is_empty() {
            let list: Accepted = serde_json::from_slice(&signed.list)
                .context("the store sent no list of accepted certificates")?;
            issued.list = issued.list.merged(&list);
        }
        let serial = inspect(&own.certificate)?.serial;
        issued.list.accepted.insert(serial, store_grant(&own.certificate, store)?);
        issued.write(&dir)?;
        own.write(&dir.join("store.pem"))?;
        ca.write(&dir.join("ca.pem"))
    }
}

/// The answer to a store that joins.
#[derive(Clone)]
pub struct Signed {
    /// Its certificate, in DER.
    pub certificate: Vec<u8>,
    /// The key of the CA, PKCS#8.
    pub ca_key: Vec<u8>,
    /// The accepted certificates, in JSON: a store that waits over a replica has no other list.
    /// Empty if it is too long for a frame.
    pub list: Vec<u8>,
}

/// Parses a request for a certificate, and verifies that its maker has the key.
///
/// # Errors
/// If it is none.
pub fn parse_request(request: &[u8]) -> Result<CertificateSigningRequestParams> {
    if request.len() > MAX_REQUEST_BYTES {
        bail!("a request for a certificate has at most {MAX_REQUEST_BYTES} bytes");
    }
    CertificateSigningRequestParams::from_der(&request.into())
        .map_err(|error| anyhow!("not a request for a certificate: {error}"))
}

/// Signs for a store that has shown a token with this serial number, and makes the token invalid.
/// `store` is the identity that it claims.
///
/// # Errors
/// If the token is used or not of this store, the request is invalid, or this process cannot write
/// a file.
pub fn answer(state: &Path, token: &str, store: &str, request: &[u8]) -> Result<Signed> {
    let request = parse_request(request)?;
    let (ca, _) = installation(state)?;
    change(state, |issued| {
        let now = OffsetDateTime::now_utc();
        let own = own_name(state, issued)?;
        let found = issued.list.accepted.get(token).filter(|grant| grant.kind == Kind::Join);
        let Some(found) = found else { bail!("the token was used: have another one made") };
        if found.store.as_ref() != Some(&own) {
            bail!("the token is of another store, and good there only");
        }
        issued.list.withdraw(|serial, _| bare(serial) == bare(token));
        let certificate = sign(&ca, now, STORE_LIFE, Leaf::Store, &request.public_key)?;
        let grant = store_grant(&certificate, store)?;
        issued.list.accepted.insert(inspect(&certificate)?.serial, grant);
        let ca_key = ca.key.secret_pkcs8_der().to_vec();
        let mut list = serde_json::to_vec(&issued.list)?;
        if list.len() > MAX_LIST_BYTES {
            tracing::warn!(
                "the list of accepted certificates is too long for a store that waits over a \
                 replica"
            );
            list.clear();
        }
        Ok((true, Signed { certificate: certificate.to_vec(), ca_key, list }))
    })
}
