//! Text for terminals: colors, wrapped lines and relative times.

use std::io::IsTerminal as _;

use jiff::Timestamp;

/// Maximum length of a line of text for people.
pub(super) const LINE_WIDTH: usize = 80;

/// A color of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Color {
    Red,
    Green,
    Yellow,
}

/// Whether standard output shows colors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Colors {
    is_enabled: bool,
}

impl Colors {
    /// No colors.
    #[cfg(test)]
    pub(super) const OFF: Self = Self { is_enabled: false };

    /// Colors only if standard output is a terminal and `NO_COLOR` does not forbid them.
    pub(super) fn of_standard_output(forbids_color: bool) -> Self {
        Self {
            is_enabled: !forbids_color && std::io::stdout().is_terminal(),
        }
    }

    /// Returns the text with the escape sequences of the color, or unchanged without colors.
    pub(super) fn paint(self, color: Color, text: &str) -> String {
        let code = match color {
            Color::Red => 31,
            Color::Green => 32,
            Color::Yellow => 33,
        };
        if self.is_enabled {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Breaks a text between words into lines of at most `width` characters. A longer word is broken.
/// Returns at least one line.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut line_length = 0;
    for word in text.split_whitespace() {
        let word_length = word.chars().count();
        if line_length > 0 && line_length + 1 + word_length > width {
            lines.push(String::new());
            line_length = 0;
        }
        let mut line = lines.pop().unwrap_or_default();
        if line_length > 0 {
            line.push(' ');
            line_length += 1;
        }
        for character in word.chars() {
            if line_length == width {
                lines.push(std::mem::take(&mut line));
                line_length = 0;
            }
            line.push(character);
            line_length += 1;
        }
        lines.push(line);
    }
    lines
}

/// Returns the time in UTC with seconds, for example `2026-01-31 12:00:00 UTC`.
pub(super) fn utc_text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// Returns the distance of a time from now, for example `3 min ago` or `in 2 h`.
pub(super) fn relative_text(time: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second() - time.as_second();
    let amount = match seconds.abs() {
        0..5 => return "now".to_owned(),
        distance @ 5..60 => format!("{distance} s"),
        distance @ 60..3600 => format!("{} min", distance / 60),
        distance @ 3600..172_800 => format!("{} h", distance / 3600),
        distance => format!("{} days", distance / 86_400),
    };
    if seconds > 0 {
        format!("{amount} ago")
    } else {
        format!("in {amount}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_lines_are_not_longer_than_the_width() {
        assert_eq!(wrap("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrap("abcdefghij k", 4), ["abcd", "efgh", "ij k"]);
        assert_eq!(wrap("ab cdefgh", 4), ["ab", "cdef", "gh"]);
        assert_eq!(wrap("éé éé éé", 5), ["éé éé", "éé"]);
        assert_eq!(wrap("", 4), [""]);
    }

    #[test]
    fn relative_times_have_one_unit() {
        let now: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        for (time, expected) in [
            ("2026-01-31T11:59:58Z", "now"),
            ("2026-01-31T11:59:01Z", "59 s ago"),
            ("2026-01-31T11:57:00Z", "3 min ago"),
            ("2026-01-31T10:00:00Z", "2 h ago"),
            ("2026-01-29T12:00:00Z", "2 days ago"),
            ("2026-01-31T12:10:00Z", "in 10 min"),
        ] {
            assert_eq!(relative_text(time.parse().unwrap(), now), expected);
        }
    }

    #[test]
    fn text_has_escape_sequences_only_with_colors() {
        assert_eq!(Colors::OFF.paint(Color::Red, "x"), "x");
        let colors = Colors { is_enabled: true };
        assert_eq!(colors.paint(Color::Red, "x"), "\u{1b}[31mx\u{1b}[0m");
        assert_eq!(Colors::of_standard_output(true), Colors::OFF);
    }
}
