//! The source files of the workspace.

use std::path::{Path, PathBuf};

/// The crates, lowest first. Each may use those before it, except for [`SIDE_BY_SIDE`].
pub const CRATES: [&str; 8] = ["core", "base", "objects", "link", "api", "host", "store", "cli"];

/// Pairs of crates that never use each other.
pub const SIDE_BY_SIDE: [(&str, &str); 3] =
    [("objects", "link"), ("objects", "api"), ("host", "store")];

/// One file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Relative to the workspace, as `core/src/block.rs`.
    pub path: String,
    /// All of it.
    pub text: String,
}

impl Source {
    /// Whether all of it is for tests.
    #[must_use]
    pub fn is_test(&self) -> bool {
        let parts = || self.path.split('/');
        parts().any(|part| part == "tests" || part == "tests.rs" || part == "e2e")
            || matches!(parts().next(), Some("sim" | "lab" | "fuzz" | "bench" | "tidy"))
    }

    /// The code of the product, without comments and the contents of strings.
    #[must_use]
    pub fn code(&self) -> String {
        let code = without_comments(&self.text);
        let code = without_visibility(&code);
        match code.find("#[cfg(test)]\nmod tests {") {
            Some(at) => code[..at].to_owned(),
            None => code,
        }
    }
}

/// The directory of the workspace.
#[must_use]
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// All Rust files below a directory of the workspace, in order of path.
///
/// # Errors
/// If a file is unreadable.
pub fn sources(directory: &str) -> std::io::Result<Vec<Source>> {
    let root = workspace();
    let mut found = Vec::new();
    let mut left = vec![root.join(directory)];
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(next)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                left.push(path);
            } else if name.ends_with(".rs") {
                let relative = path.strip_prefix(&root).unwrap_or(&path);
                let text = std::fs::read_to_string(&path)?;
                found.push(Source { path: relative.to_string_lossy().into_owned(), text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// The same text with comments and the contents of strings blanked. Lines stay where they are.
#[must_use]
pub fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |at| at + 2)
        } else if let Some(raw) = raw_string(rest) {
            raw
        } else if c == '"' {
            string(rest)
        } else if c == '\'' && (rest[1..].starts_with('\\') || rest.chars().nth(2) == Some('\'')) {
            let body = if rest[1..].starts_with('\\') { 3 } else { 2 };
            rest.char_indices()
                .skip(body)
                .find(|(_, c)| *c == '\'')
                .map_or(rest.len(), |(at, _)| at + 1)
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        out.extend(rest[..skipped].chars().filter(|c| *c == '\n'));
        rest = &rest[skipped..];
    }
    out
}

/// The same code without `pub(in PATH)`: that names a module and takes nothing from it.
fn without_visibility(code: &str) -> String {
    let mut parts = code.split("pub(in ");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str("pub");
        out.push_str(part.split_once(')').map_or(part, |(_, rest)| rest));
    }
    out
}

/// Bytes of the raw string that a text begins with.
fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let begin = text.len() - after.len() + hashes + 1;
    Some(text[begin..].find(&end).map_or(text.len(), |at| begin + at + end.len()))
}

/// Bytes of the string that a text begins with.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_blanked() {
        let text = "let a = \"use x; // \\\" \"; // use y\nlet b = 'c'; \
                    let d = r#\"crate::z\"#;\n/* q */ let l: &'a str;\n";
        let code = without_comments(text);
        assert_eq!(code, "let a = ; \nlet b = ; let d = ;\n let l: &'a str;\n");
    }
}
