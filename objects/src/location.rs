//! The value of `--data` of a store: the location of its objects.

use anyhow::{Context as _, Result};
use longhaul_base::Usage;
use longhaul_base::units::{self, show_bytes};
use std::fmt;
use std::path::{Path, PathBuf};

/// Least memory for objects: room for some segments.
const MIN_MEMORY_BYTES: u64 = 64 << 20;

/// Where a store keeps its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// Files of a directory.
    Directory(PathBuf),
    /// A block device, or a file of fixed size.
    Device(PathBuf),
    /// A bucket, over the S3 API.
    Bucket {
        /// Its name.
        bucket: String,
        /// Beginning of the names of all objects there; may be empty. No slash at either end.
        prefix: String,
    },
    /// The memory of the store's process, up to a limit. Nothing survives the process.
    Memory {
        /// Most bytes of objects.
        limit_bytes: u64,
    },
}

impl Location {
    /// Parses the value of `--data`: a directory, `s3://BUCKET/PREFIX`, `file:///PATH`, `mem://` or
    /// `mem://SIZE`.
    ///
    /// # Errors
    /// [`Usage`], if the value names no existing object store, or an impossible location.
    pub fn parse(data: &Path) -> Result<Location> {
        let Some((scheme, rest)) = data.to_str().and_then(|text| text.split_once("://")) else {
            return Ok(Location::Directory(data.to_owned()));
        };
        match scheme {
            "s3" => Location::bucket(rest),
            "file" if rest.starts_with('/') => Ok(Location::Device(rest.into())),
            "file" => Err(usage(format!(
                "--data {}: the path of a device or a file begins with a slash, as in \
                 file:///dev/sdb",
                data.display()
            ))),
            "mem" => Location::memory(rest, machine_bytes()?),
            _ => Err(usage(format!(
                "--data {}: `{scheme}` is no kind of location: give a directory, \
                 s3://BUCKET/PREFIX, file:///DEVICE or mem://SIZE",
                data.display()
            ))),
        }
    }

    fn bucket(text: &str) -> Result<Location> {
        let (bucket, prefix) = text.split_once('/').unwrap_or((text, ""));
        let prefix = prefix.trim_end_matches('/');
        let allowed = |c: u8| c.is_ascii_alphanumeric() || b".-_".contains(&c);
        if bucket.len() < 3 || bucket.len() > 63 || !bucket.bytes().all(allowed) {
            return Err(usage(format!(
                "--data s3://{text}: `{bucket}` is not the name of a bucket: those have 3 to 63 \
                 letters, digits, dots and dashes"
            )));
        }
        let part = |part: &str| {
            !part.is_empty() && part != "." && part != ".." && part.bytes().all(allowed)
        };
        // Such names need no escaping anywhere. If a server keeps objects as files, they are
        // directories.
        if !prefix.is_empty() && (prefix.len() > 512 || !prefix.split('/').all(part)) {
            return Err(usage(format!(
                "--data s3://{text}: a prefix is made of letters, digits, dots, dashes and \
                 underscores, with single slashes between"
            )));
        }
        Ok(Location::Bucket { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }

    fn memory(size: &str, machine: u64) -> Result<Location> {
        if size.is_empty() {
            return Ok(Location::Memory { limit_bytes: (machine / 2).max(MIN_MEMORY_BYTES) });
        }
        let limit_bytes =
            units::bytes(size).map_err(|error| usage(format!("--data mem://{size}: {error:#}")))?;
        if !(MIN_MEMORY_BYTES..=machine).contains(&limit_bytes) {
            return Err(usage(format!(
                "--data mem://{size}: give from {} to the {} that this machine has",
                show_bytes(MIN_MEMORY_BYTES),
                show_bytes(machine)
            )));
        }
        Ok(Location::Memory { limit_bytes })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Directory(path) | Location::Device(path) => path.display().fmt(out),
            Location::Bucket { bucket, prefix } => write!(out, "s3://{bucket}/{prefix}"),
            Location::Memory { limit_bytes } => {
                write!(out, "memory ({})", show_bytes(*limit_bytes))
            }
        }
    }
}

fn usage(message: String) -> anyhow::Error {
    Usage(message).into()
}

/// The machine's memory (proc_meminfo(5)).
fn machine_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|total| total.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).context("/proc/meminfo does not show the size of the memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_data_says() {
        let parse = |text: &str| Location::parse(Path::new(text));
        let wrong = |text: &str| parse(text).unwrap_err().downcast::<Usage>().unwrap().0;
        assert_eq!(parse("/srv/x").unwrap(), Location::Directory("/srv/x".into()));
        assert_eq!(parse("mem:").unwrap(), Location::Directory("mem:".into()));
        assert_eq!(parse("mem://64MiB").unwrap(), Location::Memory { limit_bytes: 64 << 20 });
        let half = Location::memory("", 8 << 30).unwrap();
        assert_eq!(half, Location::Memory { limit_bytes: 4 << 30 });
        assert_eq!(half.to_string(), "memory (4 GiB)");
        assert!(machine_bytes().unwrap() > MIN_MEMORY_BYTES);
        assert_eq!(parse("file:///dev/sdb").unwrap(), Location::Device("/dev/sdb".into()));
        assert!(wrong("file://sdb").contains("begins with a slash"));
        assert!(wrong("mem://8MiB").contains("64 MiB"));
        assert!(wrong("mem://9000TiB").contains("this machine has"));
        assert!(wrong("mem://much").contains("`much` is not a size"));
        assert!(wrong("tape://x").contains("`tape`"));
    }

    #[test]
    fn buckets() {
        let parse = |text: &str| Location::parse(Path::new(text));
        let bucket = |bucket: &str, prefix: &str| Location::Bucket {
            bucket: bucket.into(),
            prefix: prefix.into(),
        };
        assert_eq!(parse("s3://my-bucket/a/b").unwrap(), bucket("my-bucket", "a/b"));
        assert_eq!(parse("s3://my-bucket/a/").unwrap(), bucket("my-bucket", "a"));
        assert_eq!(parse("s3://my-bucket").unwrap(), bucket("my-bucket", ""));
        assert_eq!(parse("s3://my-bucket/a/b/").unwrap().to_string(), "s3://my-bucket/a/b");
        for (text, part) in [
            ("s3://", "name of a bucket"),
            ("s3:///x", "name of a bucket"),
            ("s3://a b c/x", "name of a bucket"),
            ("s3://bucket//x", "prefix"),
            ("s3://bucket/../x", "prefix"),
            ("s3://bucket/x?versions", "prefix"),
        ] {
            let error = parse(text).unwrap_err().downcast::<Usage>().unwrap().0;
            assert!(error.contains(part) && error.contains(text), "{error}");
        }
    }
}
