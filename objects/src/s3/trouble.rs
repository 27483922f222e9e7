//! Explains the failures of a bucket, and what to do about them.

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
    pub fn explain(&self, answer: &Answer) -> String {
        match answer {
            Answer::Refused { status, code, message } => {
                self.named(&self.refused(*status, code, message))
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
    pub fn lost(&self, error: &str) -> String {
        let has = |parts: &[&str]| parts.iter().any(|part| error.contains(part));
        let advice = if has(&["dns error", "failed to lookup", "Name or service not known"]) {
            ": the name is not known; check AWS_ENDPOINT_URL, AWS_REGION and the name service"
        } else if has(&["URL scheme is not allowed"]) {
            ": it is plain http; use https, or set AWS_ALLOW_HTTP=true where the network is your \
             own"
        } else if has(&["invalid peer certificate", "certificate", "HandshakeFailure"]) {
            ": its certificate is not accepted; have this machine trust its CA, or name the CA's \
             file in SSL_CERT_FILE"
        } else if has(&["InvalidContentType", "corrupt message"]) {
            ": it does not speak TLS; is the endpoint http://?"
        } else if has(&["169.254.", "metadata"]) {
            ": no credentials were found, and none are to be had from the machine's metadata \
             service; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        } else if has(&["Connection refused", "No route to host", "Network is unreachable"]) {
            ": no answer; check AWS_ENDPOINT_URL and the network"
        } else {
            ""
        };
        self.named(&format!("no answer from {self} ({error}){advice}"))
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
            let text = place.explain(&answer);
            assert!(text.contains(advice) && text.contains("why"), "{text}");
        }
        let lost = |text: &str| place.explain(&Answer::Lost(text.into()));
        assert!(lost("dns error: failed to lookup address information").contains("AWS_REGION"));
        assert!(lost("invalid peer certificate: UnknownIssuer").contains("SSL_CERT_FILE"));
        assert!(
            lost("tcp connect error: Connection refused (os error 111)")
                .contains("check AWS_ENDPOINT_URL")
        );
        assert_eq!(lost("x"), "no answer from bucket `b` at https://e (x)");
        let replica = Place { replica: true, ..place.clone() };
        let text = replica.explain(&Answer::Lost("Connection refused".into()));
        assert!(text.contains("check LONGHAUL_REPLICA_AWS_ENDPOINT_URL and"), "{text}");
    }
}
