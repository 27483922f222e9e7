//! The meaning of the end of a QUIC connection, at either side.

use super::error::{CloseCode, CredentialFault, LinkError};
use quinn::VarInt;

pub(super) fn write_error(
    error: quinn::WriteError,
    connection: fn(&quinn::ConnectionError) -> LinkError,
) -> LinkError {
    match error {
        quinn::WriteError::ConnectionLost(error) => connection(&error),
        error => LinkError::Lost(error.to_string()),
    }
}

// TLS alerts, RFC 8446 §6.2; in QUIC an alert is the error code 0x100 plus its number, RFC 9001
// §4.8.
const ALERT: u64 = 0x100;
const BAD_CERTIFICATE: u64 = ALERT + 42;
const CERTIFICATE_REVOKED: u64 = ALERT + 44;
const CERTIFICATE_EXPIRED: u64 = ALERT + 45;
const CERTIFICATE_UNKNOWN: u64 = ALERT + 46;
const UNKNOWN_CA: u64 = ALERT + 48;
const DECRYPT_ERROR: u64 = ALERT + 51;
const NO_APPLICATION_PROTOCOL: u64 = ALERT + 120;

/// The meaning of the end of a connection for a client.
pub(super) fn client_error(error: &quinn::ConnectionError) -> LinkError {
    use quinn::ConnectionError::{ConnectionClosed, TransportError};
    match error {
        // Found by us.
        TransportError(error) => match u64::from(error.code) {
            UNKNOWN_CA | BAD_CERTIFICATE | DECRYPT_ERROR => LinkError::WrongCa,
            CERTIFICATE_EXPIRED => LinkError::StoreExpired,
            _ => common_error(&quinn::ConnectionError::TransportError(error.clone())),
        },
        // Found by the store.
        ConnectionClosed(close) => match u64::from(close.error_code) {
            UNKNOWN_CA | BAD_CERTIFICATE | DECRYPT_ERROR | CERTIFICATE_UNKNOWN => {
                LinkError::WrongCa
            }
            CERTIFICATE_REVOKED => LinkError::Revoked,
            CERTIFICATE_EXPIRED => LinkError::Expired,
            _ => common_error(error),
        },
        error => common_error(error),
    }
}

/// The meaning of the end of a connection for a store.
pub(super) fn server_error(error: &quinn::ConnectionError) -> LinkError {
    use quinn::ConnectionError::TransportError;
    match error {
        TransportError(found) => match u64::from(found.code) {
            UNKNOWN_CA | BAD_CERTIFICATE | DECRYPT_ERROR => {
                LinkError::Credential(CredentialFault::OtherCa)
            }
            CERTIFICATE_REVOKED => LinkError::Credential(CredentialFault::Withdrawn),
            CERTIFICATE_EXPIRED => LinkError::Credential(CredentialFault::Expired),
            _ => common_error(error),
        },
        error => common_error(error),
    }
}

fn common_error(error: &quinn::ConnectionError) -> LinkError {
    use quinn::ConnectionError as E;
    match error {
        E::TimedOut => LinkError::TimedOut,
        E::Reset => LinkError::Lost("the peer was restarted".into()),
        E::LocallyClosed => LinkError::Closed("by ourselves".into()),
        E::ApplicationClosed(close) => {
            let reason = longhaul_base::text::bounded(&String::from_utf8_lossy(&close.reason));
            let is = |code: CloseCode| close.error_code == VarInt::from_u32(code.number());
            if is(CloseCode::Revoked) {
                LinkError::Revoked
            } else if is(CloseCode::Expired) {
                LinkError::Expired
            } else {
                LinkError::Closed(reason)
            }
        }
        E::ConnectionClosed(close) if u64::from(close.error_code) == NO_APPLICATION_PROTOCOL => {
            LinkError::Protocol("it is not longhaul, or of another generation".into())
        }
        error => LinkError::Lost(error.to_string()),
    }
}
