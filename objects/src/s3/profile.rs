//! Static keys, region and endpoint from the files of the AWS tools (`~/.aws/credentials` and
//! `~/.aws/config`).
//!
//! `object_store` knows the environment and the metadata services, not these files. This module
//! ignores settings of a profile for roles, single sign-on or programs. It reads changed files
//! again, so that an operator can replace credentials without a restart.

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// The paths of the files, and the name of the profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    credentials: PathBuf,
    config: PathBuf,
    profile: String,
    /// Whether the environment names the profile.
    asked: bool,
}

/// The settings of a profile.
#[derive(Debug, Default)]
pub struct Profile {
    /// Its static keys.
    pub keys: Option<AwsCredential>,
    /// `region`.
    pub region: Option<String>,
    /// `endpoint_url`.
    pub endpoint: Option<String>,
}

impl Files {
    /// Finds the files by the environment. `None` if there is no home directory to look in.
    pub fn find(env: &dyn Fn(&str) -> Option<OsString>) -> Option<Files> {
        let path = |name: &str, file: &str| {
            let named = env(name).map(PathBuf::from);
            named.or_else(|| Some(Path::new(&env("HOME")?).join(".aws").join(file)))
        };
        let asked = env("AWS_PROFILE").and_then(|name| name.into_string().ok());
        let asked = asked.filter(|name| !name.is_empty());
        Some(Files {
            credentials: path("AWS_SHARED_CREDENTIALS_FILE", "credentials")?,
            config: path("AWS_CONFIG_FILE", "config")?,
            asked: asked.is_some(),
            profile: asked.unwrap_or_else(|| "default".into()),
        })
    }

    /// Whether the environment names the profile.
    pub fn asked(&self) -> bool {
        self.asked
    }

    /// Reads the profile. It may be missing if the environment does not name it.
    ///
    /// # Errors
    /// If a file is unreadable, or a profile that the environment names has no static keys.
    pub fn read(&self) -> Result<Profile> {
        let mut all =
            section(&self.config, &[&format!("profile {}", self.profile), &self.profile])?;
        // If both files have a setting, that of `credentials` counts.
        all.extend(section(&self.credentials, &[&self.profile])?);
        let (key_id, secret_key) =
            (all.remove("aws_access_key_id"), all.remove("aws_secret_access_key"));
        let token = all.remove("aws_session_token");
        let keys = match (key_id, secret_key) {
            (Some(key_id), Some(secret_key)) => Some(AwsCredential { key_id, secret_key, token }),
            (None, None) if !self.asked => None,
            (None, None) => bail!(
                "profile `{}` has no static keys in {} or {}, and longhaul uses nothing else of a \
                 profile: `aws configure export-credentials --format env` gives variables to start \
                 the store with",
                self.profile,
                self.credentials.display(),
                self.config.display()
            ),
            _ => bail!(
                "profile `{}` in {} has only one of aws_access_key_id and aws_secret_access_key",
                self.profile,
                self.credentials.display()
            ),
        };
        Ok(Profile { keys, region: all.remove("region"), endpoint: all.remove("endpoint_url") })
    }

    /// Changes when one of the files does.
    fn stamp(&self) -> Stamp {
        [&self.credentials, &self.config].map(|path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        })
    }
}

type Stamp = [Option<(SystemTime, u64)>; 2];

/// The settings of the first section that exists.
fn section(path: &Path, names: &[&str]) -> Result<BTreeMap<String, String>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let mut sections = parse(&text);
    Ok(names.iter().find_map(|name| sections.remove(*name)).unwrap_or_default())
}

/// Sections and their settings. An indented line belongs to a setting that longhaul does not use.
fn parse(text: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut sections = BTreeMap::new();
    let mut current: Option<&mut BTreeMap<String, String>> = None;
    for line in text.lines() {
        let indented = line.starts_with(char::is_whitespace);
        let line = line.trim();
        if indented || line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            let name = name.split(']').next().unwrap_or_default();
            let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
            current = Some(sections.entry(name).or_default());
        } else if let (Some(current), Some((name, value))) = (&mut current, line.split_once('=')) {
            current.insert(name.trim().to_lowercase(), value.trim().to_owned());
        }
    }
    sections
}

/// The keys of a profile, up to date with its files.
#[derive(Debug)]
pub struct Keys {
    files: Files,
    last: Mutex<(Stamp, Arc<AwsCredential>)>,
}

impl Keys {
    /// Begins with the keys that the caller has read.
    pub fn new(files: Files, keys: AwsCredential) -> Keys {
        let last = Mutex::new((files.stamp(), Arc::new(keys)));
        Keys { files, last }
    }
}

#[async_trait]
impl CredentialProvider for Keys {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let stamp = self.files.stamp();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if stamp != last.0 {
            match self.files.read() {
                Ok(Profile { keys: Some(keys), .. }) => *last = (stamp, Arc::new(keys)),
                // Somebody may be writing the file just now. The old keys may still be valid.
                Ok(_) => tracing::warn!("profile `{}` has no keys any more", self.files.profile),
                Err(error) => tracing::warn!("the credentials stay as they were: {error:#}"),
            }
        }
        Ok(last.1.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &Path, profile: Option<&str>) -> Files {
        let dir = dir.to_owned();
        let env = |name: &str| match name {
            "AWS_SHARED_CREDENTIALS_FILE" => Some(dir.join("credentials").into()),
            "AWS_CONFIG_FILE" => Some(dir.join("config").into()),
            "AWS_PROFILE" => profile.map(OsString::from),
            _ => None,
        };
        Files::find(&env).unwrap()
    }

    #[test]
    fn profiles_are_found_in_both_files() {
        let dir = tempfile::tempdir().unwrap();
        assert!(files(dir.path(), None).read().unwrap().keys.is_none());
        std::fs::write(
            dir.path().join("credentials"),
            "# keys\n[default]\naws_access_key_id = A\naws_secret_access_key=s=/+\n\n[lab]\n\
             aws_access_key_id=B\naws_secret_access_key=t\naws_session_token=u\n[half]\naws_access_key_id=C\n",
        )
        .unwrap();
        std::fs::write(
            dir.path().join("config"),
            "[default]\nregion = eu-west-1\n[profile  lab]\nregion=lab-1\nendpoint_url = \
             http://x:1\n\
             s3 =\n  region = no\n[profile sso]\nsso_session = x\n",
        )
        .unwrap();
        let read = |profile| files(dir.path(), profile).read();
        let found = read(None).unwrap();
        let keys = found.keys.unwrap();
        assert_eq!(
            (keys.key_id.as_str(), keys.secret_key.as_str(), keys.token),
            ("A", "s=/+", None)
        );
        assert_eq!((found.region.as_deref(), found.endpoint), (Some("eu-west-1"), None));
        let found = read(Some("lab")).unwrap();
        assert_eq!(found.keys.unwrap().token.as_deref(), Some("u"));
        assert_eq!(found.region.as_deref(), Some("lab-1"));
        assert_eq!(found.endpoint.as_deref(), Some("http://x:1"));
        for (profile, part) in
            [("sso", "export-credentials"), ("half", "only one"), ("no", "no static")]
        {
            let error = read(Some(profile)).expect_err("refused").to_string();
            assert!(error.contains(part) && error.contains(profile), "{error}");
        }
        assert!(Files::find(&|_| None).is_none());
    }

    #[tokio::test]
    async fn keys_that_are_replaced_are_taken_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("credentials");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write("[default]\naws_access_key_id=A\naws_secret_access_key=s\n");
        let files = files(dir.path(), None);
        let keys = Keys::new(files.clone(), files.read().unwrap().keys.unwrap());
        let key = || async { keys.get_credential().await.unwrap().key_id.clone() };
        assert_eq!(key().await, "A");
        write("[default]\naws_access_key_id=Bb\n");
        assert_eq!(key().await, "A", "half a file");
        write("[default]\naws_access_key_id=Bb\naws_secret_access_key=s\n");
        assert_eq!(key().await, "Bb");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(key().await, "Bb");
    }
}
