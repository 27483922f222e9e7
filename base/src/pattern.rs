//! Patterns of names, as a shell has them: `*` is any text, `?` any one character.

use std::str::FromStr;

/// Longest pattern, in bytes.
const MAX_BYTES: usize = 255;

/// A pattern for whole names. It has no escape: no name has a `*` or a `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        if text.is_empty() || text.len() > MAX_BYTES {
            return Err(format!("a pattern has 1 to {MAX_BYTES} bytes, as in `db-*`"));
        }
        Ok(Pattern(text.to_owned()))
    }
}

impl Pattern {
    /// Whether a name matches. The time grows at most with the product of the lengths.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name): (Vec<char>, Vec<char>) =
            (self.0.chars().collect(), name.chars().collect());
        let (mut at, mut n) = (0, 0);
        // The place of the last `*`, and of the end of its match in the name.
        let mut star: Option<(usize, usize)> = None;
        while n < name.len() {
            match pattern.get(at) {
                Some('*') => {
                    star = Some((at, n));
                    at += 1;
                }
                Some(c) if *c == '?' || *c == name[n] => (at, n) = (at + 1, n + 1),
                _ => {
                    let Some((star_at, taken)) = star else { return false };
                    star = Some((star_at, taken + 1));
                    (at, n) = (star_at + 1, taken + 1);
                }
            }
        }
        pattern[at..].iter().all(|c| *c == '*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_names_are_matched() {
        for (pattern, name, fits) in [
            ("*", "", true),
            ("*", "a/b@c", true),
            ("db", "db", true),
            ("db", "db1", false),
            ("db", "adb", false),
            ("db-?", "db-1", true),
            ("db-?", "db-", false),
            ("db-*", "db-", true),
            ("*-db", "a-db-db", true),
            ("*-db", "a-db-", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("?", "ü", true),
            ("**a", "bba", true),
        ] {
            let pattern: Pattern = pattern.parse().unwrap();
            assert_eq!(pattern.matches(name), fits, "{pattern:?} {name}");
        }
        assert!("".parse::<Pattern>().is_err());
    }

    #[test]
    fn many_stars_take_no_longer() {
        let pattern: Pattern = "*a".repeat(100).parse().unwrap();
        assert!(!pattern.matches(&"b".repeat(4096)));
    }
}
