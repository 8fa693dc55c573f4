//! Order of the messages that `ingest` forwards.

use std::fmt;
use std::str::FromStr;

/// Position of a message in the sequence of all messages that one session at a broker received. The
/// position does not depend on the clock of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IngestStamp {
    /// Number of the session. The broker allows one connection at a time in a session.
    pub session: i64,
    /// Number of the connection. A later connection of the same session has a higher epoch.
    pub epoch: i64,
    /// Number of the message in its connection.
    pub sequence: i64,
}

impl IngestStamp {
    /// Returns whether this message was received after `other`. Returns `None` if the messages
    /// belong to different sessions, because their order is then unknown.
    #[must_use]
    pub fn is_after(&self, other: &Self) -> Option<bool> {
        (self.session == other.session)
            .then_some((self.epoch, self.sequence) > (other.epoch, other.sequence))
    }
}

/// Writes the three numbers, separated by dots.
impl fmt::Display for IngestStamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            session,
            epoch,
            sequence,
        } = self;
        write!(formatter, "{session}.{epoch}.{sequence}")
    }
}

/// The text is not three numbers, separated by dots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an ingest stamp has the form SESSION.EPOCH.SEQUENCE")]
pub struct InvalidIngestStamp;

impl FromStr for IngestStamp {
    type Err = InvalidIngestStamp;

    fn from_str(text: &str) -> Result<Self, InvalidIngestStamp> {
        let mut numbers = text.split('.').map(|number| number.parse().ok());
        match [(); 4].map(|()| numbers.next()) {
            [
                Some(Some(session)),
                Some(Some(epoch)),
                Some(Some(sequence)),
                None,
            ] => Ok(Self {
                session,
                epoch,
                sequence,
            }),
            _ => Err(InvalidIngestStamp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(session: i64, epoch: i64, sequence: i64) -> IngestStamp {
        IngestStamp {
            session,
            epoch,
            sequence,
        }
    }

    #[test]
    fn a_later_connection_is_after_every_message_of_an_earlier_connection() {
        assert_eq!(stamp(1, 2, 1).is_after(&stamp(1, 1, 9)), Some(true));
        assert_eq!(stamp(1, 1, 9).is_after(&stamp(1, 2, 1)), Some(false));
        assert_eq!(stamp(1, 1, 2).is_after(&stamp(1, 1, 1)), Some(true));
        assert_eq!(stamp(1, 1, 1).is_after(&stamp(1, 1, 1)), Some(false));
        assert_eq!(stamp(1, 2, 1).is_after(&stamp(2, 1, 1)), None);
    }

    #[test]
    fn text_is_parsed_only_if_it_has_three_numbers() {
        let written = stamp(1, 1_763_449_000, 42);
        assert_eq!(written.to_string().parse(), Ok(written));
        for invalid in ["", "1", "1.2", "1.2.3.4", "1.2.", "1.2.x"] {
            let parsed = invalid.parse::<IngestStamp>();
            assert_eq!(parsed, Err(InvalidIngestStamp), "{invalid}");
        }
    }
}
