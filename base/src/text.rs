//! Makes text of others fit for a terminal, a log and the audit log.
//!
//! Text of a peer or of a file may hold control bytes. A terminal acts on them, and a log would
//! show lines that nobody logged. All such text passes one of these functions before longhaul
//! prints or writes it.

use std::fmt::Write as _;

/// Longest kept text of a client, in bytes.
pub const MAX_BYTES: usize = 256;
/// Stands for the missing rest of a text.
const CUT: char = '\u{2026}';

/// Whether a terminal acts on a character, or shows nothing or something else for it.
fn is_hidden(c: char) -> bool {
    // C0, DEL and C1; marks that turn the direction of text around; spaces of no width; ends of
    // lines.
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

fn push(out: &mut String, c: char) {
    if is_hidden(c) {
        // Writing to a string does not fail.
        let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
    } else {
        out.push(c);
    }
}

/// The text with `\u{1b}` and the like in place of characters that a terminal would act on.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    text.chars().for_each(|c| push(&mut out, c));
    out
}

/// The same for several lines, which stay lines.
pub fn escaped_lines(text: &str) -> String {
    text.split('\n').map(escaped).collect::<Vec<_>>().join("\n")
}

/// The same in at most [`MAX_BYTES`] bytes. A longer text ends with an ellipsis.
pub fn bounded(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        let before = out.len();
        push(&mut out, c);
        if out.len() > MAX_BYTES {
            out.truncate(before);
            while out.len() + CUT.len_utf8() > MAX_BYTES {
                out.pop();
            }
            out.push(CUT);
            break;
        }
    }
    out
}

/// JSON text without characters that a terminal would act on. `json` may have control bytes only in
/// strings and as ends of lines.
pub fn json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c != '\n' && is_hidden(c) {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// Prints a message for people. Parts of it may come from a store.
pub fn tell(message: &str) {
    eprintln!("{}", escaped_lines(message));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_a_terminal_that_it_acts_on() {
        let hostile = "a\u{1b}[31mb\r\n\u{7f}\u{9b}1m\u{202e}c\u{feff}";
        assert_eq!(
            escaped(hostile),
            "a\\u{1b}[31mb\\u{d}\\u{a}\\u{7f}\\u{9b}1m\\u{202e}c\\u{feff}"
        );
        assert_eq!(escaped("volume ä/ö \u{1f680}"), "volume ä/ö \u{1f680}");
        assert_eq!(escaped_lines("a\nb\r"), "a\nb\\u{d}");
        let text = serde_json::to_string_pretty(&serde_json::json!({ "a": hostile })).unwrap();
        let shown = json(&text);
        assert!(!shown.chars().any(|c| c != '\n' && is_hidden(c)), "{shown}");
        let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(read["a"], hostile);
    }

    #[test]
    fn what_is_long_is_cut() {
        for text in ["x".repeat(300), "ä".repeat(200), "\u{1b}".repeat(100)] {
            let cut = bounded(&text);
            assert!(cut.len() <= MAX_BYTES && cut.ends_with(CUT), "{} {cut}", cut.len());
        }
        assert_eq!(bounded(&"x".repeat(MAX_BYTES)), "x".repeat(MAX_BYTES));
    }
}
