//! Structs with their fields, and the names of public types.

use crate::source::Source;

/// A struct with named fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Struct {
    /// Its name.
    pub name: String,
    /// How many fields it has.
    pub fields: usize,
}

/// The structs with named fields of a file.
#[must_use]
pub fn structs(source: &Source) -> Vec<Struct> {
    let code = source.code();
    let mut found = Vec::new();
    for (at, _) in code.match_indices("struct ") {
        if !code[..at].ends_with(['\n', ' ', ')']) {
            continue;
        }
        let after = &code[at + 7..];
        let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let Some(open) = after.find(['{', ';', '(']) else { continue };
        if name.is_empty() || !after[open..].starts_with('{') {
            continue;
        }
        found.push(Struct { name, fields: fields(&after[open + 1..]) });
    }
    found
}

/// The fields in the body of a struct.
fn fields(body: &str) -> usize {
    let (mut depth, mut count) = (0i32, 0);
    let mut previous = ' ';
    let mut chars = body.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '}' if depth == 0 => break,
            '{' | '(' | '[' | '<' => depth += 1,
            '>' if previous == '-' => {}
            '}' | ')' | ']' | '>' => depth -= 1,
            ':' if depth == 0 && previous != ':' && chars.peek() != Some(&':') => count += 1,
            _ => {}
        }
        previous = c;
    }
    count
}

/// The names of types that a file shows to others.
#[must_use]
pub fn public_types(source: &Source) -> Vec<String> {
    let code = source.code();
    let mut found = Vec::new();
    for line in code.lines().map(str::trim_start) {
        let Some(rest) = line.strip_prefix("pub") else { continue };
        let rest = match rest.strip_prefix('(') {
            Some(inside) => inside.split_once(')').map_or("", |(_, rest)| rest),
            None => rest,
        };
        let mut words = rest.split_whitespace();
        if let Some("struct" | "enum" | "trait" | "type" | "union") = words.next()
            && let Some(name) = words.next()
        {
            found.push(name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted() {
        let text = "pub struct A<'a> {\n  /// a: b\n  a: HashMap<u64, fn(u8) -> Vec<io::Error>>,\n \
                    pub b: (u8, [u8; 3]),\n}\nstruct B(u8);\npub(super) enum C {}\n";
        let source = Source { path: "x.rs".into(), text: text.into() };
        assert_eq!(structs(&source), [Struct { name: "A".into(), fields: 2 }]);
        assert_eq!(public_types(&source), ["A", "C"]);
    }
}
