//! Texts of callers and clients in log lines.

use std::fmt::Write as _;

/// Returns a text that is safe in a log line, although its sender chose it: at most `max_chars`
/// characters of the text, with control characters and other invisible characters escaped. A
/// truncated text ends with its size in bytes.
#[must_use]
pub fn log_text(text: &str, max_chars: usize) -> String {
    let mut logged = String::with_capacity(text.len().min(max_chars));
    for (index, character) in text.chars().enumerate() {
        if index == max_chars {
            // Writing to a `String` never fails.
            let _ = write!(logged, "…({} bytes)", text.len());
            break;
        }
        match character {
            '"' | '\'' => logged.push(character),
            _ => logged.extend(character.escape_debug()),
        }
    }
    logged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_within_the_limit_is_unchanged() {
        assert_eq!(log_text("/a?b=\"c d\"é", 11), "/a?b=\"c d\"é");
        assert_eq!(log_text("", 0), "");
    }

    #[test]
    fn a_longer_text_is_truncated_between_characters_and_ends_with_its_size() {
        assert_eq!(log_text("ééé", 2), "éé…(6 bytes)");
        let path = "/".repeat(1_000_000);
        assert_eq!(
            log_text(&path, 256).len(),
            256 + "…(1000000 bytes)".len(),
            "the length is bounded"
        );
    }

    #[test]
    fn invisible_characters_and_backslashes_are_escaped() {
        let logged = log_text("a\r\n\u{1b}[31m\u{202e}\u{85}\\n", 100);
        assert_eq!(logged, r"a\r\n\u{1b}[31m\u{202e}\u{85}\\n");
    }
}
