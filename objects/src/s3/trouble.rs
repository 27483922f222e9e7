//! Explains the failures of a bucket, and what to do about them.

use super::super::failure::MEANWHILE;
use super::super::{StorageError, StorageErrorKind};
use super::http::Answer;
use std::fmt;

/// The location of a bucket, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its name.
    pub bucket: String,
    /// The server.
    pub endpoint: String,
    /// Whether it holds the replica, which has its own variables.
    pub replica: bool,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "bucket `{}` at {}", self.bucket, self.endpoint)
    }
}

const RENEW: &str =
    "renew them: changes of a profile's files are noticed, variables need a restart of the store";
const RIGHTS: &str = "they need s3:ListBucket of the bucket and s3:GetObject, s3:PutObject and \
                      s3:DeleteObject below the prefix";

impl Place {
    /// Explains the failure of a request.
    pub fn explain(&self, answer: &Answer) -> StorageError {
        match answer {
            Answer::Refused { status, code, message } => {
                let kind = kind(*status, code);
                let more = match kind {
                    StorageErrorKind::Denied => format!("; {MEANWHILE}"),
                    StorageErrorKind::Full => format!("; or enlarge the quota; {MEANWHILE}"),
                    _ => String::new(),
                };
                let text = self.named(&self.refused(*status, code, message));
                StorageError::new(kind, text + &more)
            }
            Answer::Lost(error) => self.lost(error),
        }
    }

    /// Replaces the names of variables by those that count for this location.
    fn named(&self, advice: &str) -> String {
        if self.replica {
            advice.replace("AWS_", "LONGHAUL_REPLICA_AWS_")
        } else {
            advice.to_owned()
        }
    }

    fn refused(&self, status: u16, code: &str, message: &str) -> String {
        let mut said = format!("{status} {code}").trim().to_owned();
        if !message.is_empty() {
            said = format!("{said}: {message}");
        }
        match (status, code) {
            (_, "NoSuchBucket") => {
                format!("no {self} ({said}): create it, or correct --data or the endpoint")
            }
            // The second one is versitygw's.
            (_, "InvalidAccessKeyId" | "XAdminUserNotFound") => format!(
                "{self} does not know the access key ({said}): check AWS_ACCESS_KEY_ID or the \
                 profile"
            ),
            (_, "SignatureDoesNotMatch") => format!(
                "{self} says that the secret key does not belong to the access key ({said}): check \
                 AWS_SECRET_ACCESS_KEY or the profile, and that nothing on the way changes requests"
            ),
            (
                _,
                "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" | "InvalidToken",
            ) => {
                format!(
                    "the credentials for {self} have expired or are not valid ({said}): {RENEW}"
                )
            }
            (_, "RequestTimeTooSkewed" | "RequestExpired" | "RequestInTheFuture") => format!(
                "the clocks of this machine and of {self} differ too much ({said}): set this \
                 one's, and keep it by NTP"
            ),
            (301 | 307, _)
            | (_, "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException") => {
                format!(
                    "{self} is in another region or at another endpoint ({said}): set AWS_REGION \
                     or AWS_ENDPOINT_URL"
                )
            }
            (_, "QuotaExceeded" | "XMinioStorageFull" | "XMinioAdminBucketQuotaExceeded")
            | (507, _) => {
                format!("{self} has no room ({said}): make some; the store then goes on by itself")
            }
            (501, _) | (_, "NotImplemented") => format!(
                "{self} does not know the request ({said}): longhaul needs PutObject with \
                 `If-None-Match: *`"
            ),
            (200..=299, _) => format!("{self} has begun to copy an object, and failed ({said})"),
            (409, _) => format!("{self} was busy with the same name ({said})"),
            (429 | 503, _) | (_, "SlowDown") => {
                format!("{self} asks for fewer requests, or is not ready ({said})")
            }
            (401 | 403, _) => {
                format!("{self} denies access to the credentials ({said}): {RIGHTS}")
            }
            (404, _) => format!(
                "the server at {} has no S3 API, or not the bucket's ({said}): check \
                 AWS_ENDPOINT_URL",
                self.endpoint
            ),
            _ => format!("{self} refuses ({said})"),
        }
    }

    /// Explains why no answer came.
    pub fn lost(&self, error: &str) -> StorageError {
        use StorageErrorKind as Kind;
        let has = |parts: &[&str]| parts.iter().any(|part| error.contains(part));
        let (kind, advice) = if has(&["dns error", "failed to lookup", "Name or service not known"])
        {
            let advice =
                ": the name is not known; check AWS_ENDPOINT_URL, AWS_REGION and the name service";
            (Kind::Unavailable, advice)
        } else if has(&["URL scheme is not allowed"]) {
            let advice = ": it is plain http; use https, or set AWS_ALLOW_HTTP=true where the \
                          network is your own";
            (Kind::Misconfigured, advice)
        } else if has(&["invalid peer certificate", "certificate", "HandshakeFailure"]) {
            let advice = ": its certificate is not accepted; have this machine trust its CA, or \
                          name the CA's file in SSL_CERT_FILE";
            (Kind::Misconfigured, advice)
        } else if has(&["InvalidContentType", "corrupt message"]) {
            (Kind::Misconfigured, ": it does not speak TLS; is the endpoint http://?")
        } else if has(&["169.254.", "metadata"]) {
            let advice = ": no credentials were found, and none are to be had from the machine's \
                          metadata service; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
                          AWS_PROFILE";
            (Kind::Denied, advice)
        } else if has(&["Connection refused", "No route to host", "Network is unreachable"]) {
            (Kind::Unavailable, ": no answer; check AWS_ENDPOINT_URL and the network")
        } else {
            (Kind::Unavailable, "")
        };
        let text = self.named(&format!("no answer from {self} ({error}){advice}"));
        StorageError::new(kind, text)
    }
}

/// The kind of a refusal.
fn kind(status: u16, code: &str) -> StorageErrorKind {
    match (status, code) {
        // Some servers say these with the status 403.
        (
            _,
            "QuotaExceeded"
            | "XMinioStorageFull"
            | "XMinioAdminBucketQuotaExceeded"
            | "InsufficientStorage",
        )
        | (507, _) => StorageErrorKind::Full,
        (
            _,
            "NoSuchBucket"
            | "RequestTimeTooSkewed"
            | "RequestExpired"
            | "RequestInTheFuture"
            | "AuthorizationHeaderMalformed"
            | "IllegalLocationConstraintException"
            | "NotImplemented",
        )
        | (301 | 307 | 404 | 501, _) => StorageErrorKind::Misconfigured,
        (
            _,
            "AccessDenied"
            | "InvalidAccessKeyId"
            | "XAdminUserNotFound"
            | "SignatureDoesNotMatch"
            | "ExpiredToken"
            | "ExpiredTokenException"
            | "TokenRefreshRequired"
            | "InvalidToken",
        )
        | (401 | 403, _) => StorageErrorKind::Denied,
        _ => StorageErrorKind::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_says_what_to_do() {
        let place = Place { bucket: "b".into(), endpoint: "https://e".into(), replica: false };
        for (status, code, advice) in [
            (404, "NoSuchBucket", "create it"),
            (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
            (403, "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
            (400, "ExpiredToken", "renew"),
            (403, "RequestTimeTooSkewed", "NTP"),
            (403, "AccessDenied", "s3:PutObject"),
            (301, "PermanentRedirect", "AWS_REGION"),
            (501, "NotImplemented", "If-None-Match"),
            (404, "", "no S3 API"),
            (418, "Teapot", "refuses (418 Teapot: why)"),
        ] {
            let answer = Answer::Refused { status, code: code.into(), message: "why".into() };
            let text = place.explain(&answer).to_string();
            assert!(text.contains(advice) && text.contains("why"), "{text}");
        }
        let lost = |text: &str| place.explain(&Answer::Lost(text.into())).to_string();
        assert!(lost("dns error: failed to lookup address information").contains("AWS_REGION"));
        assert!(lost("invalid peer certificate: UnknownIssuer").contains("SSL_CERT_FILE"));
        assert!(
            lost("tcp connect error: Connection refused (os error 111)")
                .contains("check AWS_ENDPOINT_URL")
        );
        assert_eq!(lost("x"), "no answer from bucket `b` at https://e (x)");
        let replica = Place { replica: true, ..place.clone() };
        let text = replica.explain(&Answer::Lost("Connection refused".into())).to_string();
        assert!(text.contains("check LONGHAUL_REPLICA_AWS_ENDPOINT_URL and"), "{text}");
    }
    #[test]
    fn each_has_a_kind() {
        let place = Place { bucket: "b".into(), endpoint: "https://e".into(), replica: false };
        for (status, code, kind) in [
            (403, "AccessDenied", StorageErrorKind::Denied),
            (401, "", StorageErrorKind::Denied),
            (403, "SignatureDoesNotMatch", StorageErrorKind::Denied),
            (400, "ExpiredToken", StorageErrorKind::Denied),
            (403, "QuotaExceeded", StorageErrorKind::Full),
            (507, "XMinioStorageFull", StorageErrorKind::Full),
            (507, "", StorageErrorKind::Full),
            (403, "RequestTimeTooSkewed", StorageErrorKind::Misconfigured),
            (404, "NoSuchBucket", StorageErrorKind::Misconfigured),
            (503, "SlowDown", StorageErrorKind::Unavailable),
            (500, "InternalError", StorageErrorKind::Unavailable),
        ] {
            let answer = Answer::Refused { status, code: code.into(), message: String::new() };
            let error = place.explain(&answer);
            assert_eq!(error.kind(), kind, "{error}");
            let waits = [StorageErrorKind::Denied, StorageErrorKind::Full].contains(&kind);
            assert_eq!(error.message().ends_with(MEANWHILE), waits, "{error}");
        }
    }
}
