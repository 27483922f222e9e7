//! iSCSI names (RFC 7143 §4.2.7): their check, and the normal form for comparisons.
//!
//! The normal form is that of RFC 3722: folded to lower case, then NFKC. Beyond ASCII the check
//! accepts only letters, digits and combining marks. That is stricter than the profile, and needs
//! none of its tables. It excludes punctuation, symbols, spaces and unassigned characters. One rule
//! is more lenient than the standard: the check accepts `_`, because names of volumes and of
//! initiators in the field have it.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// Prefix of target names; the volume's name follows.
pub const TARGET_PREFIX: &str = "iqn.2026-11.io.longhaul:";

/// Longest name, in bytes of UTF-8 (§4.2.7.1).
pub const MAX_NAME_BYTES: usize = 223;

/// The reason why a text is no iSCSI name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Longer than [`MAX_NAME_BYTES`].
    #[error("an iSCSI name has at most {MAX_NAME_BYTES} bytes")]
    TooLong,
    /// A character that names must not have.
    #[error("{0:?} must not be in an iSCSI name")]
    Character(char),
    /// None of the formats.
    #[error(
        "an iSCSI name is `iqn.yyyy-mm.domain[:anything]`, `eui.` and 16 hexadecimal digits, \
         or `naa.` and 16 or 32 of them"
    )]
    Format,
}

/// Characters that RFC 3722 maps to nothing (RFC 3454 table B.1).
fn is_dropped(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{1806}' | '\u{180b}'..='\u{180d}' | '\u{200b}'..='\u{200d}'
        | '\u{2060}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}')
}

/// The normal form of a name.
///
/// # Errors
///
/// The reason why the name is invalid.
pub fn normalize(name: &str) -> Result<String, NameError> {
    // Folding shortens a name only by dropped characters. So refuse a name of more than twice the
    // limit without that work.
    if name.len() > 2 * MAX_NAME_BYTES {
        return Err(NameError::TooLong);
    }
    let name: String = if name.is_ascii() {
        name.to_ascii_lowercase()
    } else {
        let kept: String = name.chars().filter(|c| !is_dropped(*c)).collect();
        // The second round folds the results of compatibility forms (RFC 3454 §B.2).
        fold(&fold(&kept))
    };
    if name.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong);
    }
    for c in name.chars() {
        let good = match c {
            'a'..='z' | '0'..='9' | '-' | '.' | ':' | '_' => true,
            c if c.is_ascii() => false,
            c => c.is_alphanumeric() || is_combining_mark(c),
        };
        if !good {
            return Err(NameError::Character(c));
        }
    }
    let good = match name.split_at_checked(4) {
        Some(("iqn.", rest)) => is_qualified(rest),
        Some(("eui.", rest)) => rest.len() == 16 && is_hex(rest),
        Some(("naa.", rest)) => matches!(rest.len(), 16 | 32) && is_hex(rest),
        _ => false,
    };
    if good { Ok(name) } else { Err(NameError::Format) }
}

/// Case folded, then NFKC.
fn fold(name: &str) -> String {
    let mut folded = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            // The only letter whose upper case form is that of another letter.
            'ı' => folded.push(c),
            c => folded.extend(c.to_uppercase().flat_map(char::to_lowercase)),
        }
    }
    folded.nfkc().collect()
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// `yyyy-mm.domain[:anything]`.
fn is_qualified(rest: &str) -> bool {
    let Some((date, rest)) = rest.split_once('.') else { return false };
    let date = date.as_bytes();
    let month = match date {
        [y @ .., b'-', tens, units] if y.len() == 4 && y.iter().all(u8::is_ascii_digit) => {
            [*tens, *units]
        }
        _ => return false,
    };
    let month_good = matches!(month, [b'0', b'1'..=b'9'] | [b'1', b'0'..=b'2']);
    let domain = rest.split(':').next().unwrap_or_default();
    month_good && !domain.is_empty() && domain.split('.').all(|label| !label.is_empty())
}

/// The target name of a volume: [`TARGET_PREFIX`] and the volume's name in lower case, because
/// iSCSI names have no upper case.
///
/// The snapshot `VOLUME@SNAPSHOT` becomes `VOLUME:SNAPSHOT`, and the tenant's volume
/// `TENANT/VOLUME` becomes `TENANT::VOLUME`, because iSCSI names have neither sign.
#[must_use]
pub fn target_name(volume: &str) -> String {
    let name = volume.to_ascii_lowercase().replace('@', ":").replace('/', "::");
    format!("{TARGET_PREFIX}{name}")
}

/// The volume or snapshot of a target name, in the spelling of the name.
#[must_use]
pub fn volume_of(target: &str) -> Option<String> {
    let (prefix, name) = target.split_at_checked(TARGET_PREFIX.len())?;
    let is_name = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    let (tenant, rest) = match name.split_once("::") {
        Some((tenant, rest)) => (Some(tenant), rest),
        None => (None, name),
    };
    let (volume, snapshot) = match rest.split_once(':') {
        Some((volume, snapshot)) => (volume, Some(snapshot)),
        None => (rest, None),
    };
    let good = target.len() <= MAX_NAME_BYTES
        && prefix.eq_ignore_ascii_case(TARGET_PREFIX)
        && tenant.is_none_or(is_name)
        && is_name(volume)
        && snapshot.is_none_or(is_name);
    good.then(|| name.replace("::", "/").replace(':', "@"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names() {
        for (name, normal) in [
            ("iqn.1993-08.org.debian:01:ABCdef", "iqn.1993-08.org.debian:01:abcdef"),
            ("IQN.2001-04.com.example", "iqn.2001-04.com.example"),
            ("iqn.2001-04.com.example:disk_1", "iqn.2001-04.com.example:disk_1"),
            ("eui.02004567A425678D", "eui.02004567a425678d"),
            ("naa.52004567BA64678D", "naa.52004567ba64678d"),
            ("naa.62004567BA64678D0123456789ABCDEF", "naa.62004567ba64678d0123456789abcdef"),
            // Full width, a sharp s, a ligature, a decomposed umlaut, a soft hyphen.
            ("iqn.2001-04.com.example:ＡＢ", "iqn.2001-04.com.example:ab"),
            ("iqn.2001-04.com.example:Straße", "iqn.2001-04.com.example:strasse"),
            ("iqn.2001-04.com.example:ıſς", "iqn.2001-04.com.example:ısσ"),
            ("iqn.2001-04.com.example:ﬁ", "iqn.2001-04.com.example:fi"),
            ("iqn.2001-04.com.example:U\u{308}", "iqn.2001-04.com.example:ü"),
            ("iqn.2001-04.com.example:a\u{ad}b", "iqn.2001-04.com.example:ab"),
        ] {
            assert_eq!(normalize(name).as_deref(), Ok(normal), "{name}");
        }
        for (name, why) in [
            ("", NameError::Format),
            ("iqn", NameError::Format),
            ("iqn.", NameError::Format),
            ("iqn.2001-04", NameError::Format),
            ("iqn.2001-04.", NameError::Format),
            ("iqn.2001-04.:x", NameError::Format),
            ("iqn.2001-04.com..example", NameError::Format),
            ("iqn.2001-13.com.example", NameError::Format),
            ("iqn.2001-00.com.example", NameError::Format),
            ("iqn.201-04.com.example", NameError::Format),
            ("iqn.20o1-04.com.example", NameError::Format),
            ("eui.02004567A425678", NameError::Format),
            ("eui.02004567A425678G", NameError::Format),
            ("naa.52004567BA64678D0", NameError::Format),
            ("x.2001-04.com.example", NameError::Format),
            ("iqn.2001-04.com.example:a b", NameError::Character(' ')),
            ("iqn.2001-04.com.example:a,b", NameError::Character(',')),
            ("iqn.2001-04.com.example:a。b", NameError::Character('。')),
            ("iqn.2001-04.com.example:\u{202e}", NameError::Character('\u{202e}')),
        ] {
            assert_eq!(normalize(name), Err(why), "{name}");
        }
        let long = |n: usize| format!("iqn.2001-04.com.example:{}", "a".repeat(n - 24));
        assert!(normalize(&long(MAX_NAME_BYTES)).is_ok());
        assert_eq!(normalize(&long(MAX_NAME_BYTES + 1)), Err(NameError::TooLong));
    }

    #[test]
    fn volumes() {
        assert_eq!(target_name("Data_1"), "iqn.2026-11.io.longhaul:data_1");
        assert_eq!(volume_of("iqn.2026-11.io.longhaul:data_1").as_deref(), Some("data_1"));
        assert_eq!(volume_of("IQN.2026-11.IO.LONGHAUL:Data").as_deref(), Some("Data"));
        assert_eq!(target_name("data@Monday"), "iqn.2026-11.io.longhaul:data:monday");
        assert_eq!(
            volume_of("iqn.2026-11.io.longhaul:data:monday").as_deref(),
            Some("data@monday")
        );
        assert_eq!(target_name("acme/Data@x"), "iqn.2026-11.io.longhaul:acme::data:x");
        assert_eq!(
            volume_of("iqn.2026-11.io.longhaul:acme::data:x").as_deref(),
            Some("acme/data@x")
        );
        for name in ["", ":", ":a", "a:", "a:b:c", "a@b", "a/b", "::a", "a::", "a::b::c", "a:b::c"]
        {
            let name = format!("iqn.2026-11.io.longhaul:{name}");
            assert_eq!(volume_of(&name), None, "{name}");
        }
        assert_eq!(volume_of(""), None);
        assert_eq!(volume_of("iqn.2026-11.x:a"), None);
    }

    proptest! {
        #[test]
        fn normal_form_is_final(name in "(iqn\\.2001-04\\.a:)?\\PC{0,40}") {
            if let Ok(normal) = normalize(&name) {
                prop_assert!(normal.len() <= MAX_NAME_BYTES);
                prop_assert_eq!(normalize(&normal), Ok(normal.clone()));
            }
        }
    }
}
